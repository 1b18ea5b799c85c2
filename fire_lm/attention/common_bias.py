"""A common form of additive biases, which all attention kernels can compute.

    bias[h, i, j] = g_i (slope[s, h] slab[h, i - j] r_i + offset[s, h])

Here h is a head, i and j are the positions of a query and a key, and s is the index of the segment
that contains the value slab[h, i - j] r_i. ALiBi, KERPLE, T5 and Sandwich have a single segment and
r = g = 1: their slab is the bias as a function of distance. For FIRE, the slab is psi, r_i is 1 /
psi(max(L, i)), and the segments lie between the kinks of the ReLU MLP (`positions/piecewise.py`);
g_i is the gain of FIRE-G.

Shapes: B batch, T queries, S keys, N heads, P positions (and distances) 0 .. P - 1, K kinks.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.terms import BiasFn
from fire_lm.errors import UserError


class CommonBias(NamedTuple):
    """The tables of one layer's bias: O(n) float32 numbers. Calling the object computes the bias.

    Attributes:
      slab_MP: The slab as a function of distance; M is N, or 1 if all heads share the slab. With
        kinks, M is 1 and the slab does not decrease with the distance.
      row_P, gain_P: The factors r_i and g_i as functions of the query's position; r_i is positive.
        With kinks, r_i does not increase with the position.
      kink_K: The bounds of the segments, in increasing order.
      slope_KN, offset_KN: The slope and the offset of each of the K + 1 segments.
      exact: A bool that is False if the bias has more segments than fit into the tables, which then
        do not represent the bias.
      rate: The rate c >= 0 of a slab log(1 + c d), where d is the distance, or None for other
        slabs. If there is a rate, the gradient flows to the rate instead of the slab.
    """

    slab_MP: jax.Array
    row_P: jax.Array
    gain_P: jax.Array
    kink_K: jax.Array
    slope_KN: jax.Array
    offset_KN: jax.Array
    exact: jax.Array
    rate: jax.Array | None = None

    def __call__(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
        """Return the complete bias `[B, N, T, S]`, which a kernel computes tile by tile.

        The result is NaN if the tables are not `exact`, and wherever a query's position or a
        distance is beyond the tables.

        Raises:
          UserError: The positions are not integers.
        """
        for pos in (q_pos_BT, k_pos_BS):
            if not jnp.issubdtype(pos.dtype, jnp.integer):
                raise UserError(
                    f"a CommonBias needs integer positions, not {pos.dtype}: pass the encoding's "
                    "own bias to attend instead"
                )
        distance_BTS = jnp.abs(q_pos_BT[:, :, None] - k_pos_BS[:, None, :])
        slab_MP = self.slab_MP
        if self.rate is not None:  # d slab / d c = (1 - e^-slab) / c
            slab_MP = jax.lax.stop_gradient(slab_MP)
            change = self.rate - jax.lax.stop_gradient(self.rate)
            slab_MP = slab_MP + per_rate(change, self.rate) * -jnp.expm1(-slab_MP)
        x_BMTS = jnp.moveaxis(_look_up(slab_MP, distance_BTS), 0, 1)
        x_BMTS = x_BMTS * _look_up(self.row_P, q_pos_BT)[:, None, :, None]
        if self.kink_K.size:  # Only FIRE has kinks, and its heads share one slab.
            segment_BTS = jnp.searchsorted(self.kink_K, x_BMTS[:, 0])
        else:
            segment_BTS = jnp.zeros_like(distance_BTS)
        slope_BNTS, offset_BNTS = (
            jnp.moveaxis(table_KN.T[:, segment_BTS], 0, 1)
            for table_KN in (self.slope_KN, self.offset_KN)
        )
        gain_BT = jnp.where(self.exact, _look_up(self.gain_P, q_pos_BT), jnp.nan)
        return gain_BT[:, None, :, None] * (slope_BNTS * x_BMTS + offset_BNTS)


@dataclasses.dataclass(frozen=True)
class TabulatedBias:
    """A bias as a function of any positions, and as tables for 0 .. P - 1, which kernels need."""

    function: BiasFn
    tables: CommonBias

    def __call__(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
        return self.function(q_pos_BT, k_pos_BS)


def common_form(bias: BiasFn | None) -> CommonBias | None:
    """Return the tables of a bias, or None if the bias has no tables."""
    if isinstance(bias, TabulatedBias):
        return bias.tables
    return bias if isinstance(bias, CommonBias) else None


def of_slab(slab_NP: jax.Array) -> CommonBias:
    """Return the bias whose value at distance d is `slab_NP[:, d]`, for every query."""
    heads, positions = slab_NP.shape
    ones_P = jnp.ones(positions, jnp.float32)
    slope_KN, offset_KN = jnp.ones((1, heads)), jnp.zeros((1, heads))
    return CommonBias(slab_NP, ones_P, ones_P, jnp.zeros(0), slope_KN, offset_KN, jnp.bool_(True))


def per_rate(x: jax.Array, rate: jax.Array) -> jax.Array:
    """Return x / c without a gradient with respect to the rate c, or 0 if c is 0.

    If c is 0, the slab is 0 at every distance.
    """
    rate = jax.lax.stop_gradient(rate)
    return jnp.where(rate > 0, x / jnp.where(rate > 0, rate, 1.0), 0.0)


def _look_up(table: jax.Array, index: jax.Array) -> jax.Array:
    """Return the entries at `index` along the last axis; an index beyond the end yields NaN."""
    return jnp.take(table, index, axis=-1, mode="fill", fill_value=jnp.nan)
