"""The functions and dataclasses that gin files may name, and their parameters.

`import my_package.my_encoding` in a gin file, or `--import`, adds the dataclasses of a module.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from fire_lm.errors import UserError, first_line

NO_VALUE = inspect.Parameter.empty
Configurable = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A keyword of a configurable; `default` may be NO_VALUE."""

    annotation: Any
    default: Any


@functools.cache
def parameters(target: Configurable) -> Mapping[str, Parameter]:
    """The keywords of a function or dataclass, in the order of its signature."""
    hints = typing.get_type_hints(target)
    return {
        name: Parameter(hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(target).parameters.items()
    }


@functools.cache
def class_of_result(target: Configurable) -> type | None:
    """The class of what a call of `target` gives, if that is known."""
    hint = target if inspect.isclass(target) else typing.get_type_hints(target).get("return")
    hint = typing.get_origin(hint) or hint
    return hint if inspect.isclass(hint) and hint is not Any else None


def imported(
    modules: Mapping[str, str], known: Mapping[str, Configurable]
) -> dict[str, Configurable]:
    """`known` and the dataclasses of `modules` (module -> where it is asked for), by name.

    Raises:
      UserError: a module cannot be imported, has no dataclass (nor seqio, with whom it could
        register tasks), or has one of a known name, or one whose annotations cannot be read.
    """
    found = dict(known)
    for name, where in modules.items():
        try:
            module = importlib.import_module(name)
        except Exception as error:  # whatever the user's code raises
            raise UserError(
                f"{where}: cannot import {name}: {first_line(error)}\n"
                "put the folder that holds it on PYTHONPATH"
            ) from error
        classes = _dataclasses(module)
        if not classes and not any(_of_seqio(member) for member in vars(module).values()):
            raise UserError(f"{where}: {name} has no dataclass that a gin file could name")
        for label, member in classes.items():
            if found.setdefault(label, member) is not member:
                other = f"{found[label].__module__}.{label}"
                raise UserError(f"{where}: {name}.{label} has the name of {other}: rename it")
            try:
                parameters(member)
            except Exception as error:  # a name that only a type checker imports, say
                raise UserError(
                    f"{where}: cannot read the annotations of {name}.{label}: {first_line(error)}\n"
                    "import what they name also at run time, not only under TYPE_CHECKING"
                ) from error
    return found


def _of_seqio(member: Any) -> bool:
    name = getattr(member, "__module__", None) or getattr(member, "__name__", None)
    return isinstance(name, str) and name.partition(".")[0] == "seqio"


def _dataclasses(module: ModuleType) -> dict[str, Configurable]:
    """The dataclasses that a module and its package define, without imported ones."""
    package = module.__name__.partition(".")[0]
    return {
        name: member
        for name, member in inspect.getmembers(module, inspect.isclass)
        if dataclasses.is_dataclass(member)
        and not inspect.isabstract(member)
        and not name.startswith("_")
        and member.__module__.partition(".")[0] == package
    }
