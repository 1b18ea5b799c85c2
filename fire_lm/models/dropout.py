"""Dropout (Srivastava et al., 2014), active where the caller gives random bits named "dropout".

GPT-2's places: after the embedding, on attention weights, after attention and after the MLP. The
FIRE paper finetunes with both rates at 0.1 (Tables 10 and 12) and pretrains without (Table 9).

Shapes: B batch, T positions, S keys, N heads, H head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError

DROPOUT = "dropout"


def check_rate(name: str, rate: float) -> None:
    """Raises UserError unless `rate` is a probability below 1."""
    if not 0 <= rate < 1:
        raise UserError(f"{name} is {rate}: it must be at least 0 and below 1")


def drop(x: jax.Array, rate: float, rng: jax.Array) -> jax.Array:
    """Return `x` with entries set to 0 with probability `rate`, the others divided by 1 - rate."""
    return _masked(x, jax.random.bernoulli(rng, 1 - rate, x.shape), rate)


def drop_values(v_BSNH: jax.Array, rate: float, rng: jax.Array) -> jax.Array:
    """Dropout of attention weights, with one draw for each example, key and head.

    A key that is dropped is dropped for all queries, as in T5X: its weight times its value is then
    0, so the mask can act on the values, and no implementation of attention needs to know of it.
    """
    return _masked(v_BSNH, jax.random.bernoulli(rng, 1 - rate, v_BSNH.shape[:3])[..., None], rate)


def _masked(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))
