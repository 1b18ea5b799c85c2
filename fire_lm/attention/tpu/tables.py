"""The tables of a bias in the form that the kernels require: in base 2, padded to full blocks.

Shapes: B batch, E examples (B, or 1 if the batch shares its positions), T tokens, N heads, P tokens
or distances (padded), K kinks, M slabs (N or 1), R = 128.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.tpu.schedule import Blocks, Order, live_segments, skew


class Tables(NamedTuple):
    """The tables of a `CommonBias`, indexed by token index instead of position, all float32.

    Within a document, the indices of two tokens differ by as much as their positions, so the slab
    needs no change. The padding is for indices after the last token, and for distances that occur
    only there. The cotangent of `Tables` is also a `Tables`, with None for tables that need no
    gradient.

    Attributes:
      slab_MP: The slab as a function of distance.
      row_EP, gain_EP: The factors r_i and g_i of each query; g_i includes the factor
        `bias_scale_BT`.
      kink_K: The bounds of the segments, in increasing order.
      slope_KN, offset_KN: The slope and the offset of each of the K + 1 segments, for logits in
        base 2.
      rate: The rate of the slab, or None (see `CommonBias`).
    """

    slab_MP: jax.Array
    row_EP: jax.Array
    gain_EP: jax.Array
    kink_K: jax.Array
    slope_KN: jax.Array
    offset_KN: jax.Array
    rate: jax.Array | None

    @classmethod
    def of(
        cls,
        bias: CommonBias,
        pos_ET: jax.Array | None,
        scale_ET: jax.Array | None,
        blocks: Blocks,
        length: int,
    ) -> Tables:
        """Build the tables for the tokens of each example from tables that are indexed by position.

        Args:
          bias: The tables indexed by position, which must cover all of `pos_ET`.
          pos_ET: The positions of the tokens, or None for 0 .. T - 1.
          scale_ET: The factor on each query's bias, or None for 1.
          blocks: The blocks of the kernels.
          length: The number of tokens T.
        """

        def pad(table: jax.Array) -> jax.Array:
            return jnp.pad(table, ((0, 0), (0, blocks.padded_length - length)), mode="edge")

        def by_place(table_P: jax.Array) -> jax.Array:
            if pos_ET is None:
                return pad(table_P[None, :length])
            return pad(jnp.take(table_P, pos_ET, mode="fill", fill_value=jnp.nan))

        row_EP, gain_EP = by_place(bias.row_P), by_place(bias.gain_P)
        if scale_ET is not None:
            row_EP, gain_EP = jnp.broadcast_arrays(row_EP, gain_EP * pad(scale_ET))
        return cls(
            slab_MP=pad(bias.slab_MP[:, :length]),
            row_EP=row_EP,
            gain_EP=gain_EP,
            kink_K=bias.kink_K,
            slope_KN=bias.slope_KN * math.log2(math.e),
            offset_KN=bias.offset_KN * math.log2(math.e),
            rate=bias.rate,
        )

    def skewed(self, blocks: Blocks) -> jax.Array:
        """Return the skewed slab `[M, R, block + P]`; see `schedule.skew`."""
        # A tile's window of two blocks starts one block below the distance between its query and
        # key blocks. On the diagonal, it starts in the padding, whose distances are masked.
        return skew(jnp.pad(self.slab_MP, ((0, 0), (blocks.tokens, 0))))

    def live_segments(self, blocks: Blocks, order: Order) -> jax.Array:
        """Return `schedule.live_segments` for each example, int32 `[E, X, 1, 2 S S]`."""

        def of_example(row_P: jax.Array) -> jax.Array:
            return live_segments(self.slab_MP[0], row_P, self.kink_K, self.slope_KN, blocks, order)

        return jax.vmap(of_example)(self.row_EP)
