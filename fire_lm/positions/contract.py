"""Checks of what an encoding defines and what its hooks return.

They read names, shapes and dtypes only, so they change no compiled program.

Shapes: B batch, T queries, S keys, N heads, H head dim.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError, nearest
from fire_lm.positions.base import HOOKS, Params, PositionalEncoding
from fire_lm.sharding import leaves_by_path


def check_definition(encoding: PositionalEncoding) -> None:
    """Raise UserError if parameters have another type, or if no hook acts and one is misspelt.

    The parameters of an encoding without any hook would have no effect.
    """
    for part in encoding.parts.values():
        check_definition(part)
    has_parameters = bool(_checked_parameters(encoding))
    if any(map(encoding.acts_through, HOOKS)):
        return
    kind, meant = type(encoding), ""
    for name in _own_methods(kind):
        if hook := nearest(name, HOOKS):
            meant = f". Did you mean {hook} instead of {name}?"
    if meant or has_parameters:
        raise UserError(
            f"{kind.__name__} acts through no hook: it must override "
            f"{', '.join(HOOKS[:-1])} or {HOOKS[-1]}{meant}"
        )


@functools.cache
def _checked_parameters(encoding: PositionalEncoding) -> Params:
    """Return the shapes of the parameters.

    The key is traced too: as an array, it would start JAX before the processes of a job are joined.
    """
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0)))
    found = "" if isinstance(params, Mapping) else _kind(params)
    for name, leaf in leaves_by_path(params).items():
        if not found and leaf.dtype != jnp.float32:
            found = f"{name} as {_kind(leaf)}"
    if found:
        raise UserError(
            f"{type(encoding).__name__}.init returns {found}: it must return a dict of float32 "
            "arrays"
        )
    return params


def _own_methods(kind: type[PositionalEncoding]) -> list[str]:
    """Return the names of the public methods that the interface does not have."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return [
        name
        for name, _ in methods
        if not name.startswith("_") and not hasattr(PositionalEncoding, name)
    ]


def check_term(encoding: PositionalEncoding, hook: str, term: Any, batch: int, *axes: int) -> None:
    """Raise UserError unless what a hook returned is None or float32 `[batch or 1, *axes]`.

    Broadcasting would give another meaning to an array without one of the axes.
    """
    if term is None or _kind(term) in (_float32(batch, *axes), _float32(1, *axes)):
        return
    size = "1" if batch == 1 else f"{batch} or 1"
    raise UserError(
        f"{type(encoding).__name__}.{hook} returns {_kind(term)}: it must return "
        f"float32[{', '.join([size, *map(str, axes)])}]"
    )


def check_rotated(
    encoding: PositionalEncoding, rotated: Any, q_BTNH: jax.Array, k_BSNH: jax.Array
) -> None:
    """Raise UserError unless `rotated` are queries and keys, which may only be wider."""
    name = f"{type(encoding).__name__}.rotate"
    if not isinstance(rotated, tuple | list) or len(rotated) != 2:
        raise UserError(f"{name} returns {_kind(rotated)}: it must return a pair, queries and keys")
    for side, found, given in zip(("queries", "keys"), rotated, (q_BTNH, k_BSNH), strict=True):
        before_width = f"{given.dtype}[{', '.join(map(str, given.shape[:3]))}, "
        if not _kind(found).startswith(before_width):
            raise UserError(
                f"{name} returns {side} of {_kind(found)}: they must be {before_width}H]"
            )


def _float32(*shape: int) -> str:
    return f"float32{list(shape)}"


def _kind(value: Any) -> str:
    """Return the dtype and the shape of an array, such as "float32[4, 12]", or else its type."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype}{list(value.shape)}"
