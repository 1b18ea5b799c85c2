"""The positional encodings, one family per module; modules are discovered without a registry.

The package also contains components that can be combined with the encodings: `rope_scaling` (RoPE
beyond its training length), `log_n` (attention scaled by log n) and `resampling` (random
positions).
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
    """Return every concrete dataclass of this package, keyed by the name that gin files use."""
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
                    "gin files cannot distinguish the two, so rename one"
                )
    return found


def encodings() -> dict[str, type[PositionalEncoding]]:
    """Return the `configurables` that are positional encodings."""
    return {
        name: member
        for name, member in configurables().items()
        if issubclass(member, PositionalEncoding)
    }


def is_built_in(part: Any) -> bool:
    """Return whether an encoding or a mixer is one of fire_lm, whose tests check its properties."""
    return type(part).__module__.startswith("fire_lm.")


__all__ = ["PositionalEncoding", "configurables", "encodings", "is_built_in"]
