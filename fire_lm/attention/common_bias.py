"""A common form of the papers' additive biases, which all kernels can serve.

    bias[h, i, j] = g_i (slope[s, h] slab[h, i - j] r_i + offset[s, h])

s is the segment into which slab * r falls. ALiBi, KERPLE, T5 and Sandwich have a single segment
and r = g = 1: the slab is their bias by distance. FIRE's slab is psi, r_i is 1 / psi(max(L, i)),
and its segments lie between the kinks of its ReLU MLP (`positions/piecewise.py`); g_i is FIRE-G's
gain.

Shapes: B batch, T queries, S keys, N heads, P positions (and distances) 0 .. P - 1, K kinks.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import BiasFn
from fire_lm.errors import UserError


class CommonBias(NamedTuple):
    """The tables of one layer, float32, O(n) numbers; as a function of positions, its bias.

    Attributes:
      slab_MP: by distance; M is N, or 1 where all heads share it. With kinks M is 1, and the slab
        does not fall as the distance grows.
      row_P, gain_P: r_i and g_i by the query's position.
      kink_K: increasing bounds of the segments.
      slope_KN, offset_KN: of the K + 1 segments.
      rate: c >= 0 where the slab is log(1 + c d) of distances d, or None. Gradients go to it, and
        not to the slab's values.
      exact: bool; False if the bias has more segments than these, so that the tables are not it.
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
        """The bias `[B, N, T, S]`: what a kernel computes tile by tile.

        NaN where it is not `exact`, and for positions and distances beyond the tables.

        Raises:
          UserError: positions between integers, which tables do not have.
        """
        for pos in (q_pos_BT, k_pos_BS):
            if not jnp.issubdtype(pos.dtype, jnp.integer):
                raise UserError(
                    f"the common form of a bias has tables by integer position, got {pos.dtype}: "
                    "give attend the encoding's bias instead"
                )
        distance_BTS = jnp.abs(q_pos_BT[:, :, None] - k_pos_BS[:, None, :])
        slab_MP = self.slab_MP
        if self.rate is not None:  # d slab / d c = (1 - e^-slab) / c
            slab_MP = jax.lax.stop_gradient(slab_MP)
            change = self.rate - jax.lax.stop_gradient(self.rate)
            slab_MP = slab_MP + per_rate(change, self.rate) * -jnp.expm1(-slab_MP)
        x_BMTS = jnp.moveaxis(_look_up(slab_MP, distance_BTS), 0, 1)
        x_BMTS = x_BMTS * _look_up(self.row_P, q_pos_BT)[:, None, :, None]
        if self.kink_K.size:  # FIRE: one slab for all heads
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
    """A bias as a function of positions, and the same bias as tables for kernels.

    Attributes:
      function: for all positions.
      tables: for positions 0 .. P - 1.
    """

    function: BiasFn
    tables: CommonBias

    def __call__(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
        return self.function(q_pos_BT, k_pos_BS)


def common_form(bias: BiasFn) -> CommonBias | None:
    """The tables of a bias that has any."""
    if isinstance(bias, TabulatedBias):
        return bias.tables
    return bias if isinstance(bias, CommonBias) else None


def of_slab(slab_NP: jax.Array) -> CommonBias:
    """The bias that is `slab_NP` by distance, at every query."""
    heads, positions = slab_NP.shape
    ones_P = jnp.ones(positions, jnp.float32)
    slope_KN, offset_KN = jnp.ones((1, heads)), jnp.zeros((1, heads))
    return CommonBias(slab_NP, ones_P, ones_P, jnp.zeros(0), slope_KN, offset_KN, jnp.bool_(True))


def per_rate(x: jax.Array, rate: jax.Array) -> jax.Array:
    """x / c of a slab, and 0 where c is 0 and the slab flat; constant in c."""
    rate = jax.lax.stop_gradient(rate)
    return jnp.where(rate > 0, x / jnp.where(rate > 0, rate, 1.0), 0.0)


def _look_up(table: jax.Array, index: jax.Array) -> jax.Array:
    """Entries of the last axis; NaN beyond it, never another's."""
    return jnp.take(table, index, axis=-1, mode="fill", fill_value=jnp.nan)
