"""The family of positional encodings: one file each, found by looking, so no registry to edit.

Besides the encodings there are pieces that compose with them: `rope_scaling` (RoPE beyond its
training length), `log_n` (attention scaled by log n), `resampling` (random positions).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from typing import Any

from fire_lm.errors import UserError
from fire_lm.positions.base import PositionalEncoding


def configurables() -> dict[str, type[Any]]:
    """Every concrete dataclass in this package by its name, as gin files spell it."""
    found: dict[str, type[Any]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, member in inspect.getmembers(module, inspect.isclass):
            abstract = inspect.isabstract(member) or member is PositionalEncoding
            if not dataclasses.is_dataclass(member) or abstract or name.startswith("_"):
                continue
            if found.setdefault(name, member) is not member:
                raise UserError(
                    f"{member.__module__} and {found[name].__module__} both define {name}: "
                    "gin files could not tell them apart, rename one"
                )
    return found


def encodings() -> dict[str, type[PositionalEncoding]]:
    """The positional encodings among the `configurables`."""
    return {
        name: member
        for name, member in configurables().items()
        if issubclass(member, PositionalEncoding)
    }


__all__ = ["PositionalEncoding", "configurables", "encodings"]
