"""Checks of what an encoding defines.

They read names, shapes and dtypes only, so they change no compiled program.
"""

from __future__ import annotations

import inspect

import jax

from fire_lm.errors import UserError, nearest
from fire_lm.positions.base import HOOKS, PositionalEncoding


def check_definition(encoding: PositionalEncoding) -> None:
    """Raise UserError if no hook can use the encoding's parameters, or if a hook is misspelt."""
    for part in encoding.parts.values():
        check_definition(part)
    if any(map(encoding.acts_through, HOOKS)):
        return
    kind, meant = type(encoding), ""
    for name in _own_methods(kind):
        if hook := nearest(name, HOOKS):
            meant = f". Did you mean {hook} instead of {name}?"
    if meant or jax.eval_shape(encoding.init, jax.random.key(0)):
        raise UserError(
            f"{kind.__name__} acts through no hook: it must override "
            f"{', '.join(HOOKS[:-1])} or {HOOKS[-1]}{meant}"
        )


def _own_methods(kind: type[PositionalEncoding]) -> list[str]:
    """Return the names of the public methods that the interface does not have."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return [
        name
        for name, _ in methods
        if not name.startswith("_") and not hasattr(PositionalEncoding, name)
    ]
