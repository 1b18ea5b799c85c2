"""The tables of a bias as the kernels take them: for logits in base 2, padded to whole blocks.

Shapes: B batch, E examples (B, or 1 where the batch shares its positions), T tokens, N heads, P
places and distances (padded), K kinks, M slabs (N or 1), R = 128.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.tpu.schedule import Blocks, Order, live_segments, skew


class Tables(NamedTuple):
    """`CommonBias` by place in the array: within a document, places are as far apart as positions.

    What is padded belongs to no key seen. All float32; its cotangent is one of them too.
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
        """Build the tables for the tokens of each example.

        Args:
          bias: by position, with tables that reach all of `pos_ET`.
          pos_ET: positions of the tokens; None for 0 .. T - 1.
          scale_ET: factor on each query's bias; None for 1.
          blocks, length: of the kernels, and T.
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
        """The slab `[M, R, block + P]` for loads of whole registers, see `schedule.skew`."""
        # A window of two blocks ends with the distances of its tile; before 0, nobody looks.
        return skew(jnp.pad(self.slab_MP, ((0, 0), (blocks.tokens, 0))))

    def live_segments(self, blocks: Blocks, order: Order) -> jax.Array:
        """`[E, X, 1, 2 S S]` int32 of the X tiles, see `schedule.live_segments`."""

        def of_example(row_P: jax.Array) -> jax.Array:
            return live_segments(self.slab_MP[0], row_P, self.kink_K, self.slope_KN, blocks, order)

        return jax.vmap(of_example)(self.row_EP)
