"""Users' own modules: `import my_package.my_encoding` in a gin file, or `--import`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from fire_lm.config.wording import first_line
from fire_lm.errors import UserError


def imported(
    modules: Mapping[str, str], known: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """`known` and the dataclasses of `modules` (module -> where it is asked for), by name.

    Raises:
      UserError: a module cannot be imported, has no dataclass, or has one of a known name.
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
        if not classes:
            raise UserError(f"{where}: {name} has no dataclass that a gin file could name")
        for label, member in classes.items():
            if found.setdefault(label, member) is not member:
                other = f"{found[label].__module__}.{label}"
                raise UserError(f"{where}: {name}.{label} has the name of {other}: rename it")
    return found


def _dataclasses(module: ModuleType) -> dict[str, type[Any]]:
    """Those of the module and its package; what it imports from elsewhere is not its own."""
    package = module.__name__.partition(".")[0]
    return {
        name: member
        for name, member in inspect.getmembers(module, inspect.isclass)
        if dataclasses.is_dataclass(member)
        and not inspect.isabstract(member)
        and not name.startswith("_")
        and member.__module__.partition(".")[0] == package
    }
