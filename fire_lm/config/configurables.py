"""The functions and dataclasses that gin files can configure, and their parameters."""

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


class ImportFailed(UserError):
    """The error for a module that cannot be imported; `module` is its name."""

    def __init__(self, message: str, module: str):
        super().__init__(message)
        self.module = module


@functools.cache
def parameters(target: Configurable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or dataclass, with evaluated annotations."""
    hints = typing.get_type_hints(target)
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in inspect.signature(target).parameters.items()
    }


@functools.cache
def class_of_result(target: Configurable) -> type | None:
    """Return the class of the object that `target` returns, or None if it is unknown."""
    hint = target if inspect.isclass(target) else typing.get_type_hints(target).get("return")
    hint = typing.get_origin(hint) or hint
    return hint if inspect.isclass(hint) and hint is not Any else None


def imported(
    modules: Mapping[str, str], known: Mapping[str, Configurable]
) -> dict[str, Configurable]:
    """Return `known` and the dataclasses of `modules`, by name.

    Args:
      modules: The location of each module's import, as `file:line` or `--import`, by the name of
        the module.
      known: The configurables that are already known, by name.

    Raises:
      ImportFailed: A module cannot be imported.
      UserError: A module has no effect (it contains neither concrete dataclasses nor
        members of seqio, with which it could register tasks), or contains a dataclass whose name is
        already known or whose annotations cannot be evaluated.
    """
    known = dict(known)
    for module_name, where in modules.items():
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # any error in the user's code
            absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(
                f"{error.name}."
            )
            remedy = (
                "add the folder that contains it to PYTHONPATH"
                if absent
                else "the error is in that module: correct it"
            )
            raise ImportFailed(
                f"{where}: cannot import {module_name}: {first_line(error)}\n{remedy}", module_name
            ) from error
        members = _dataclasses(module)
        classes = {name: kind for name, kind in members.items() if not inspect.isabstract(kind)}
        for name, member in () if classes else members.items():
            lacking = ", ".join(sorted(getattr(member, "__abstractmethods__", ())))
            raise UserError(f"{where}: {module_name}.{name} lacks {lacking}")
        if not classes and not any(map(_is_of_seqio, vars(module).values())):
            raise UserError(
                f"{where}: {module_name} defines no dataclass that gin files can configure: "
                "remove the import"
            )
        for name, member in classes.items():
            if (other := known.setdefault(name, member)) is not member:
                other_name = f"{other.__module__}.{name}"
                raise UserError(
                    f"{where}: {module_name}.{name} has the same name as {other_name}: "
                    "remove one if it is a copy of the other, otherwise rename it"
                )
            try:
                parameters(member)
            except Exception as error:  # such as a name that only a type checker imports
                raise UserError(
                    f"{where}: cannot read the annotations of {module_name}.{name}: "
                    f"{first_line(error)}\n"
                    "import the annotated types at run time, not only under TYPE_CHECKING"
                ) from error
    return known


def _is_of_seqio(member: Any) -> bool:
    name = getattr(member, "__module__", None) or getattr(member, "__name__", None)
    return str(name).partition(".")[0] == "seqio"


def _dataclasses(module: ModuleType) -> dict[str, Configurable]:
    """Return the public dataclasses in a module that its package defines."""
    package = module.__name__.partition(".")[0]
    return {
        name: member
        for name, member in inspect.getmembers(module, dataclasses.is_dataclass)
        if inspect.isclass(member)
        and not name.startswith("_")
        and member.__module__.partition(".")[0] == package
    }
