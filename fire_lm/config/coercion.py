"""gin values made to fit the annotation of the parameter that takes them.

`Fitter.fit` turns a value tree into Python values:
6e5 fits int, 1 fits float, [1, 2] and 3 fit tuple[int, ...]; a str takes whatever was written,
so a path needs no quotes; True is no int. References stay in the result as `Ref`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fire_lm.config.signatures import Configurable, Parameter, type_hints
from fire_lm.config.syntax import Group, Node, Ref, Scalar
from fire_lm.config.wording import nearest, shown


class Misfit(Exception):
    """The value does not fit. The message says what would: 'int, got ...'."""


def plain(node: Node) -> Any:
    """The value as gin has it, with `Ref`s left in."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Group):
        items = [plain(item) for item in node.items]
        if node.kind is dict:
            return dict(zip(items[::2], items[1::2], strict=True))
        return node.kind(items)
    return node


def to_node(value: Any) -> Node | None:
    """The value tree that gin would read `value` from, or None if gin cannot write it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if type(value) in (int, float, bool, type(None), str):
        return Scalar(value, str(value))
    if type(value) not in (list, tuple, dict):
        return None
    flat = [part for pair in value.items() for part in pair] if type(value) is dict else value
    items = [to_node(item) for item in flat]
    nodes = tuple(item for item in items if item is not None)
    return Group(type(value), nodes) if len(nodes) == len(items) else None


def same(a: Any, b: Any) -> bool:
    """Whether two values mean the same; 1 and 1.0 do, 1 and True do not."""
    try:
        return a is b or (isinstance(a, bool) == isinstance(b, bool) and bool(a == b))
    except Exception:  # arrays and the like
        return False


class Fitter:
    """Fits values to annotations; knows the configurables, to judge what a reference gives."""

    def __init__(self, configurables: Mapping[str, Configurable]) -> None:
        self._configurables = configurables

    def fit(self, node: Node, parameter: Parameter) -> Any:
        """The value for `parameter`. Misfit if it cannot be one."""
        is_none = isinstance(node, Scalar) and node.value is None
        if is_none and parameter.default is None:  # `x: int = None`
            return None
        try:
            return self._fit(node, parameter.annotation)
        except Misfit:
            raise Misfit(self._explain(node, parameter.annotation)) from None

    def _fit(self, node: Node, hint: Any) -> Any:
        hint = _bare(hint)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if hint in (Any, object) or isinstance(hint, str | typing.TypeVar | typing.ForwardRef):
            return plain(node)
        if origin in (typing.Union, types.UnionType):
            return self._fit_union(node, args)
        if origin is typing.Literal:
            return _fit_literal(node, args)
        kind = origin or hint
        if kind is None or kind is type(None):
            return _scalar(node, type(None))
        if kind in (collections.abc.Callable, type):
            return self._fit_callable(node, _returned(args))
        if isinstance(node, Ref):
            return self._fit_reference(node, kind)
        if kind in _SEQUENCES:
            return self._fit_sequence(node, kind, args)
        if kind in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
            return self._fit_dict(node, args)
        if kind in _SCALARS:
            return _SCALARS[kind](node)
        value = plain(node)
        if inspect.isclass(kind) and (_is_protocol(kind) or not isinstance(value, kind)):
            raise Misfit
        return value

    def _fit_union(self, node: Node, members: tuple[Any, ...]) -> Any:
        """The member of exactly this type first, str last (it takes everything)."""
        exact = type(node.value) if isinstance(node, Scalar) else None
        for member in sorted(members, key=lambda m: (m is not exact, m is str)):
            try:
                return self._fit(node, member)
            except Misfit:
                continue
        raise Misfit

    def _fit_sequence(self, node: Node, kind: type, args: tuple[Any, ...]) -> Any:
        fixed = kind is tuple and args and args[-1] is not Ellipsis
        if isinstance(node, Scalar) and node.value is not None and not fixed:
            node = _listed(node, args)  # one length is a list of lengths
        if not isinstance(node, Group) or node.kind is dict:
            raise Misfit
        if fixed and len(args) != len(node.items):
            raise Misfit
        hints = args if fixed else (args[0] if args else Any,) * len(node.items)
        values = [self._fit(item, hint) for item, hint in zip(node.items, hints, strict=True)]
        return values if kind in (list, collections.abc.MutableSequence) else tuple(values)

    def _fit_dict(self, node: Node, args: tuple[Any, ...]) -> Any:
        if not isinstance(node, Group) or node.kind is not dict:
            raise Misfit
        key_hint, value_hint = args or (Any, Any)
        keys = [self._fit(item, key_hint) for item in node.items[::2]]
        return dict(
            zip(keys, [self._fit(item, value_hint) for item in node.items[1::2]], strict=True)
        )

    def _fit_callable(self, node: Node, wanted: type | None) -> Any:
        """A reference to what gives a `wanted`, if any, when it is called."""
        if not isinstance(node, Ref):
            raise Misfit
        target = self._configurables.get(node.name)
        given = self._given(node)
        if wanted is not None and given is not None and not issubclass(given, wanted):
            raise Misfit
        if node.call and inspect.isclass(target) and not _instances_are_callable(target):
            raise Misfit  # @FIRE() where @FIRE was meant
        return node

    def _fit_reference(self, node: Ref, kind: Any) -> Any:
        """A reference where an object of class `kind` is expected."""
        if not inspect.isclass(kind) or _is_protocol(kind):
            return node
        given = self._given(node)
        if not node.call:
            known = self._configurables.get(node.name)
            made = inspect.isclass(known) or (given is not None and issubclass(given, kind))
            if _instances_are_callable(kind) and not made:
                return node
            raise Misfit  # @FIRE where @FIRE() was meant
        if given is None or issubclass(given, kind) or (given is int and kind is float):
            return node
        raise Misfit

    def _given(self, node: Ref) -> type | None:
        """The class of what `@name()` gives, if that is known."""
        target = self._configurables.get(node.name)
        if target is None or inspect.isclass(target):
            return target
        hint = type_hints(target).get("return", Any)
        hint = typing.get_origin(hint) or hint
        return hint if inspect.isclass(hint) and hint is not Any else None

    def _explain(self, node: Node, hint: Any) -> str:
        text = f"{describe(hint)}, got {shown(node)}"
        words = _choices(hint)
        if isinstance(node, Scalar) and words and (near := nearest(node.text, words)):
            return f"{text}. Did you mean {near}?"
        if isinstance(node, Scalar) and type(node.value) is str:
            name = node.value.strip().lstrip("@")
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


def _bare(hint: Any) -> Any:
    """`hint` without Annotated, Final, InitVar and NewType around it."""
    while True:
        if isinstance(hint, dataclasses.InitVar):
            hint = hint.type
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif typing.get_origin(hint) in (typing.Annotated, typing.Final, typing.ClassVar):
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _listed(node: Node, args: tuple[Any, ...]) -> Group:
    """A value where a list is wanted; of words, as in full,last256, each by itself."""
    if args[:1] == (str,) and isinstance(node, Scalar) and isinstance(node.value, str):
        return Group(tuple, tuple(Scalar(w.strip(), w.strip()) for w in node.value.split(",")))
    return Group(tuple, (node,))


def _returned(args: tuple[Any, ...]) -> type | None:
    """What `Callable[..., X]` returns, or `type[X]` makes, if it is a class."""
    known = bool(args) and inspect.isclass(args[-1]) and args[-1] not in (Any, object)
    return args[-1] if known else None


def _is_protocol(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False)


def _instances_are_callable(kind: Any) -> bool:
    return any("__call__" in vars(base) for base in kind.__mro__)


def _scalar(node: Node, *kinds: type) -> Any:
    if isinstance(node, Scalar) and type(node.value) in kinds:
        return node.value
    raise Misfit


def _fit_int(node: Node) -> int:
    value = _scalar(node, int, float)
    if isinstance(value, float) and not value.is_integer():
        raise Misfit
    return int(value)


def _fit_float(node: Node) -> float:
    try:
        return float(_scalar(node, int, float))
    except OverflowError:
        raise Misfit from None


def _fit_str(node: Node) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, bytes):
        raise Misfit
    return node.text if isinstance(node, Scalar) and node.value is not None else _scalar(node, str)


def _fit_literal(node: Node, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        try:
            fitted = (
                _SCALARS[type(choice)](node) if choice is not None else _scalar(node, type(None))
            )
        except Misfit:
            continue
        if fitted == choice:
            return choice
    raise Misfit


_SCALARS: dict[type, Callable[[Node], Any]] = {
    bool: lambda node: _scalar(node, bool),
    int: _fit_int,
    float: _fit_float,
    str: _fit_str,
}
_SEQUENCES = (
    tuple,
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)


def _choices(hint: Any) -> list[str]:
    """The words of a Literal or bool, also inside a union."""
    if hint is bool:
        return ["True", "False"]
    if typing.get_origin(hint) is typing.Literal:
        return [str(choice) for choice in typing.get_args(hint)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [word for member in typing.get_args(hint) for word in _choices(member)]
    return []


def describe(hint: Any) -> str:
    """`hint` in words: 'int or None', "one of 'dense', 'blockwise'", 'a list of int, [1, 2]'."""
    hint = _bare(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(member) for member in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    kind = origin or hint
    if kind in (None, type(None)):
        return "None"
    if kind in (collections.abc.Callable, type):
        wanted = _returned(args)
        return (
            f"a reference to a {wanted.__name__}, like @Name"
            if wanted
            else "a reference like @Name"
        )
    if kind in _SEQUENCES:
        items = [describe(arg) for arg in args if arg is not Ellipsis]
        if kind is tuple and args and args[-1] is not Ellipsis:
            return f"({', '.join(items)})"
        if items and items[0].startswith("a reference"):
            return "a list like [@A, @B]"
        return f"a list of {items[0]} like [a, b]" if items else "a list like [a, b]"
    return getattr(kind, "__name__", str(kind))
