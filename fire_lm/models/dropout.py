"""Dropout (Srivastava et al., 2014), active if the caller passes an rng stream named "dropout".

As in GPT-2, dropout is applied after the embedding, to attention weights, after attention and after
the MLP. The FIRE paper finetunes with both dropout rates (of activations and of attention weights)
at 0.1 (Tables 10 and 12) and pretrains without dropout (Table 9).

Shapes: B batch, T positions, S keys, N heads, H head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError

DROPOUT = "dropout"


def check_rate(name: str, rate: float) -> None:
    """Raise UserError unless `rate` is a probability below 1."""
    if not 0 <= rate < 1:
        raise UserError(f"{name} is {rate}: it must be at least 0 and below 1")


def drop(x: jax.Array, rate: float, rng: jax.Array) -> jax.Array:
    """Zero each entry of `x` with probability `rate` and divide the others by 1 - rate."""
    return _masked(x, jax.random.bernoulli(rng, 1 - rate, x.shape), rate)


def drop_values(v_BSNH: jax.Array, rate: float, rng: jax.Array) -> jax.Array:
    """Drop attention weights by masking values, with one draw per example, key and head.

    As in T5X, a dropped key is dropped for all queries. Zeroing its value has the same effect as
    zeroing its weights, so no implementation of attention needs to support dropout.
    """
    return _masked(v_BSNH, jax.random.bernoulli(rng, 1 - rate, v_BSNH.shape[:3])[..., None], rate)


def _masked(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))
