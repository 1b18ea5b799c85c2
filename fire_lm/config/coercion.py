"""The conversion of gin values to the annotated types of the parameters that take them.

6e5 fits int, 1 fits float, and both [1, 2] and 3 fit tuple[int, ...]. A parameter of type str takes
the text as it was written, so that a path needs no quotes. True does not fit int. References remain
in the result as `Ref`.

Annotations may be bool, int, float, str, None, Any, Literal, tuple, list, Sequence, Callable, any
class (which takes `@Name()`), and unions of these. A protocol takes every class that has its
members.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from fire_lm.config.configurables import Configurable, class_of_result
from fire_lm.config.syntax import Node, Ref, Scalar, plain, shown
from fire_lm.errors import nearest

_SCALARS = (bool, int, float, str, type(None))
_SEQUENCES = (tuple, list, collections.abc.Sequence)
_CALLABLES = (collections.abc.Callable, type)
_UNIONS = (typing.Union, types.UnionType)


class Misfit(Exception):
    """The error for a value that does not fit its parameter; the message describes valid values."""


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equivalent; 1 and 1.0 are, but 1 and True are not."""
    try:
        return a is b or (isinstance(a, bool) == isinstance(b, bool) and bool(a == b))
    except Exception:  # such as for arrays, whose comparison yields an array
        return False


class Fitter:
    """Converts gin values to the annotated types of the parameters to which they are bound.

    `configurables` is used to look up the class of the object that a reference yields.
    """

    def __init__(self, configurables: Mapping[str, Configurable]) -> None:
        self._configurables = configurables

    def fit(self, node: Node, parameter: inspect.Parameter) -> Any:
        """Return the value of `node`, converted to the type of `parameter`.

        Raises:
          Misfit: The value does not fit.
        """
        is_none = isinstance(node, Scalar) and node.value is None
        if is_none and parameter.default is None:  # `x: int = None`
            return None
        try:
            return self._fit(node, parameter.annotation)
        except Misfit:
            raise Misfit(self._explain(node, parameter.annotation)) from None

    def _fit(self, node: Node, hint: Any) -> Any:
        kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        if kind in (Any, object):
            return plain(node)
        if kind in _UNIONS:
            return self._fit_first(node, args)
        if isinstance(node, Ref):
            return self._fit_reference(node, kind, args)
        if kind is typing.Literal:
            return self._fit_first(node, args, literal=True)
        if kind in _SEQUENCES:
            return self._fit_sequence(node, kind, args)
        if kind in _SCALARS:
            return _fit_scalar(node, kind)
        raise Misfit

    def _fit_first(self, node: Node, choices: tuple[Any, ...], literal: bool = False) -> Any:
        """Convert the value to the first of `choices` that it fits.

        The exact type of the value is tried first, and str last, because str takes every value.
        """
        exact = type(node.value) if isinstance(node, Scalar) else None
        for choice in sorted(choices, key=lambda c: (c is not exact, c is str)):
            try:
                value = self._fit(node, type(choice) if literal else choice)
            except Misfit:
                continue
            if not literal or value == choice:
                return value
        raise Misfit

    def _fit_sequence(self, node: Node, kind: type, args: tuple[Any, ...]) -> Any:
        fixed = kind is tuple and args and args[-1] is not Ellipsis
        if isinstance(node, Scalar) and node.value is not None and not fixed:
            words = node.value.split(",") if args[:1] == (str,) and type(node.value) is str else ()
            node = [Scalar(word.strip(), word.strip()) for word in words] or [node]
        if not isinstance(node, list | tuple) or (fixed and len(args) != len(node)):
            raise Misfit
        hints = args if fixed else (args[0] if args else Any,) * len(node)
        values = [self._fit(item, hint) for item, hint in zip(node, hints, strict=True)]
        return values if kind is list else tuple(values)

    def _fit_reference(self, node: Ref, kind: Any, args: tuple[Any, ...]) -> Ref:
        """Return the reference, or raise Misfit if it is known not to fit.

        `@Name` is a callable, and `@Name()` is its result.
        """
        target = self._configurables.get(node.name)
        given = class_of_result(target) if target else None
        if kind not in _CALLABLES:
            fits = node.call and _is_a(given, kind)
        elif node.call:  # @FIRE() instead of @FIRE is a misfit unless its result can be called
            fits = given is None or "__call__" in dir(given)
        else:
            fits = not args or _is_a(given, args[-1])
        if not fits:
            raise Misfit
        return node

    def _explain(self, node: Node, hint: Any) -> str:
        text = f"{describe(hint)}, got {shown(node)}"
        if isinstance(node, Scalar):
            words = _choices(hint)
            if words and (near := nearest(node.text, words)):
                return f"{text}. Did you mean {near}?"
            name = node.text.strip().lstrip("@")
            if name.removesuffix("()") in self._configurables:
                return f"{text}. A reference is written @{name}"
        if isinstance(node, Ref):
            other = dataclasses.replace(node, call=not node.call)
            try:
                self._fit(other, hint)
                return f"{text}. Did you mean {other}?"
            except Misfit:
                pass
        return text


def _is_a(given: type | None, kind: Any) -> bool:
    """Return whether an object of class `given` may have the type `kind`.

    None as `given` means that the class is unknown.
    """
    if kind is Any:
        return True
    if given is None or not inspect.isclass(kind):
        return inspect.isclass(kind)
    if getattr(kind, "_is_protocol", False):
        present = {*dir(given), *getattr(given, "__dataclass_fields__", ())}
        return set(_members(kind)) <= present
    return issubclass(given, kind) or (given, kind) == (int, float)


def _members(protocol: type) -> list[str]:
    """Return the public members of a protocol, in order."""
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    names = [name for base in reversed(bases) for name in (*base.__annotations__, *vars(base))]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _fit_scalar(node: Node, kind: type) -> Any:
    value = node.value if isinstance(node, Scalar) else NotImplemented
    if isinstance(node, Scalar) and kind is str and value is not None and type(value) is not bytes:
        return node.text
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is not kind:
        raise Misfit
    return value


def _choices(hint: Any) -> list[str]:
    """Return the possible values of a Literal or bool, even inside a union, as text."""
    if hint is bool:
        return ["True", "False"]
    args = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return list(map(str, args))
    is_union = typing.get_origin(hint) in _UNIONS
    return [word for arg in args for word in _choices(arg)] if is_union else []


def describe(hint: Any) -> str:
    """Return `hint` in words: "int or None", "one of 'dense', 'blockwise'", "a list of int"."""
    kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in _UNIONS:
        return " or ".join(map(describe, args))
    if kind is typing.Literal:
        return "one of " + ", ".join(map(repr, args))
    if kind in _CALLABLES:
        known = args and inspect.isclass(args[-1]) and args[-1] is not Any
        return f"a reference{f' to a {args[-1].__name__}, ' if known else ' '}like @Name"
    if kind in _SEQUENCES:
        items = [describe(arg) for arg in args if arg is not Ellipsis]
        if kind is tuple and args and args[-1] is not Ellipsis:
            return f"({', '.join(items)})"
        if items and items[0].startswith("a reference"):
            return "a list like [@A, @B]"
        return f"a list of {items[0]} like [a, b]" if items else "a list like [a, b]"
    if getattr(kind, "_is_protocol", False):
        return f"{kind.__name__} (with {', '.join(_members(kind))})"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))
