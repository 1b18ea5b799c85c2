"""One form for the additive biases of the papers, which kernels can serve alike.

    bias[h, i, j] = g_i (slope[s, h] slab[h, i - j] r_i + offset[s, h])

s is the segment into which slab * r falls. ALiBi, KERPLE, T5 and Sandwich have a single segment
and r = g = 1: the slab is their bias by distance. FIRE's slab is psi, r_i is 1 / psi(max(L, i)),
and its segments lie between the kinks of its ReLU MLP (`positions/piecewise.py`); g_i is FIRE-G's
gain.

Shapes: N heads, T queries, S keys, D distances 0 .. D - 1, K kinks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class CommonBias(NamedTuple):
    """The tables of one layer, float32, O(n) numbers.

    Attributes:
      slab_MD: by distance; M is N, or 1 where all heads share it.
      row_T, gain_T: r_i and g_i of each query.
      kink_K: increasing bounds of the segments.
      slope_KN, offset_KN: of the K + 1 segments.
      exact: bool; False if the bias has more segments than these, so that it must be asked itself.
    """

    slab_MD: jax.Array
    row_T: jax.Array
    gain_T: jax.Array
    kink_K: jax.Array
    slope_KN: jax.Array
    offset_KN: jax.Array
    exact: jax.Array


def of_slab(slab_ND: jax.Array, num_queries: int) -> CommonBias:
    """The bias that is `slab_ND` at every query."""
    ones_T, heads = jnp.ones(num_queries, jnp.float32), slab_ND.shape[0]
    slope_KN, offset_KN = jnp.ones((1, heads)), jnp.zeros((1, heads))
    return CommonBias(slab_ND, ones_T, ones_T, jnp.zeros(0), slope_KN, offset_KN, jnp.bool_(True))


def expand(form: CommonBias, distance_TS: jax.Array) -> jax.Array:
    """The bias `[N, T, S]` of int32 distances: what a kernel computes tile by tile."""
    x_MTS = form.slab_MD[:, distance_TS] * form.row_T[None, :, None]
    segment_MTS = jnp.searchsorted(form.kink_K, x_MTS) if form.kink_K.size else None
    if segment_MTS is None:
        slope_NTS, offset_NTS = (a[0][:, None, None] for a in (form.slope_KN, form.offset_KN))
    else:
        slope_NTS, offset_NTS = (a.T[:, segment_MTS[0]] for a in (form.slope_KN, form.offset_KN))
    return form.gain_T[None, :, None] * (slope_NTS * x_MTS + offset_NTS)
