"""KERPLE: a conditionally positive definite kernel of the distance d = i - j, learned per head.

Source: Chi et al. (NeurIPS 2022), the logarithmic and the power variant:

    b_h(i, j) = -p_h log(1 + a_h d)         p from U(0, 2), a from U(0, 1)
    b_h(i, j) = -a_h d^p_h                  a from U(0, 1), p from U(0, 2), p at most 2

Parameters are at least 0.01, as in the authors' code, which clamps the stored parameters before
every forward pass. A pure function cannot modify its parameters, so here the value is clipped but
the gradient is not, and a parameter outside the interval can return to it. The authors share one
set of parameters among all layers (configs/positions/kerple_*.gin); other implementations use one
set per layer.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from fire_lm.positions.base import Params, PositionalEncoding, distance

SMALLEST = 0.01
LARGEST_POWER = 2.0


def clip_straight_through(x: jax.Array, low: float, high: float = math.inf) -> jax.Array:
    """Clip `x` to [low, high] in the forward pass; pass the gradient through unchanged."""
    constant = jax.lax.stop_gradient(x)
    return jnp.clip(constant, low, high) + (x - constant)


def kerple_log(distance_BTS: jax.Array, p_N: jax.Array, a_N: jax.Array) -> jax.Array:
    """Return `-p log(1 + a d)`, float32 `[B, N, T, S]`."""
    p, a = (x_N[None, :, None, None] for x_N in (p_N, a_N))
    return -p * jnp.log1p(a * distance_BTS[:, None])


def kerple_power(distance_BTS: jax.Array, p_N: jax.Array, a_N: jax.Array) -> jax.Array:
    """Return `-a d^p`, float32 `[B, N, T, S]`."""
    p, a = (x_N[None, :, None, None] for x_N in (p_N, a_N))
    d = distance_BTS[:, None]
    # The gradient of 0^p with respect to p is 0 log(0), which is NaN, and a `where` on the result
    # alone would not remove this NaN. (JAX's own rule for powers takes the limit, 0; we do not rely
    # on that rule.)
    return jnp.where(d > 0, -a * jnp.where(d > 0, d, 1.0) ** p, 0.0)


def init_kernel(rng: jax.Array, num_heads: int) -> Params:
    """Draw the initial parameters p and a, float32 `[N]` each, which both variants share."""
    p_rng, a_rng = jax.random.split(rng)
    return {
        "p": jax.random.uniform(p_rng, (num_heads,), jnp.float32, 0.0, 2.0),
        "a": jax.random.uniform(a_rng, (num_heads,), jnp.float32, 0.0, 1.0),
    }


@dataclasses.dataclass(frozen=True)
class KERPLELog(PositionalEncoding):
    """KERPLE's logarithmic variant, the best in the paper.

    Parameters per layer for 12 heads: 24.
    """

    def init(self, rng: jax.Array) -> Params:
        return init_kernel(rng, self.num_heads)

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        p_N = clip_straight_through(params["p"], SMALLEST)
        a_N = clip_straight_through(params["a"], SMALLEST)
        return kerple_log(distance(q_pos_BT, k_pos_BS).astype(jnp.float32), p_N, a_N)


@dataclasses.dataclass(frozen=True)
class KERPLEPower(PositionalEncoding):
    """KERPLE's power variant. Parameters per layer for 12 heads: 24."""

    def init(self, rng: jax.Array) -> Params:
        return init_kernel(rng, self.num_heads)

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        p_N = clip_straight_through(params["p"], SMALLEST, LARGEST_POWER)
        a_N = clip_straight_through(params["a"], SMALLEST)
        return kerple_power(distance(q_pos_BT, k_pos_BS).astype(jnp.float32), p_N, a_N)
