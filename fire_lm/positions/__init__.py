"""The family of positional encodings: one file each, found by looking, so no registry to edit."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from fire_lm.positions.base import PositionalEncoding


def encodings() -> dict[str, type[PositionalEncoding]]:
    """Every concrete encoding in this package by class name, as gin files spell it."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, PositionalEncoding) and member is not PositionalEncoding:
                found[name] = member
    return found


__all__ = ["PositionalEncoding", "encodings"]
