"""What a function or class takes: its keywords, their annotations and their defaults."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

NO_DEFAULT = inspect.Parameter.empty
Configurable = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One keyword that a configurable takes; `default` may be NO_DEFAULT."""

    annotation: Any
    default: Any


@functools.cache
def parameters(target: Configurable) -> Mapping[str, Parameter]:
    """The keywords of a function or class, in the order of its signature."""
    hints = type_hints(target)
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found[name] = Parameter(hints.get(name, Any), parameter.default)
    return found


@functools.cache
def takes_any_keyword(target: Configurable) -> bool:
    """Whether the signature ends in **kwargs."""
    kinds = [parameter.kind for parameter in inspect.signature(target).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def type_hints(target: Any) -> dict[str, Any]:
    """By name, with 'return'; one that cannot be evaluated (TYPE_CHECKING) is left out."""
    while isinstance(target, functools.partial):
        target = target.func
    owner = target
    if inspect.isclass(target) and not dataclasses.is_dataclass(target):
        owner = target.__init__ if target.__init__ is not object.__init__ else target.__new__
    try:
        return typing.get_type_hints(owner)
    except Exception:  # any one bad name spoils get_type_hints for all: go one by one
        pass
    module = vars(sys.modules.get(target.__module__, typing))
    hints = {}
    for name, parameter in inspect.signature(target).parameters.items():
        hint = parameter.annotation
        try:
            hints[name] = eval(hint, dict(module)) if isinstance(hint, str) else hint
        except Exception:
            continue
    return {name: hint for name, hint in hints.items() if hint is not NO_DEFAULT}
