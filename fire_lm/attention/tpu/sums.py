"""The accumulation of the sums from which the gradients of the bias tables are computed.

Shapes: S strips of 128 in a block, Q chunks of R = 128 positions or distances, W distances and U
sums near the diagonal.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention.tpu.parts import Ref

# The sums that are accumulated in scratch memory as complete registers, so that the 8 sublanes are
# added up only once, at the end: those by segment and, if there are few chunks, those by query.
_BY_SEGMENT = ("offset", "slope", "rate")
_BY_QUERY = ("row", "gain")

# The largest number of chunks for which the sums by query are accumulated in scratch memory, where
# they take 8 times as much of VMEM. With 32, packed FIRE-G does not fit at 4096 tokens.
_MOST_CHUNKS = 16


def rows_in_scratch(sizes: dict[str, int]) -> int:
    """Return the number of rows, at the beginning of all sums, that scratch memory accumulates.

    Args:
      sizes: The number of rows of each sum, in the order of `Sums.starts`.
    """
    few = max(sizes.get(name, 0) for name in _BY_QUERY) <= _MOST_CHUNKS
    names = (*_BY_SEGMENT, *_BY_QUERY) if few else _BY_SEGMENT
    return sum(sizes.get(name, 0) for name in names)


@dataclasses.dataclass(frozen=True)
class Sums:
    """The float32 sums over a head's tiles from which the gradients of the tables are computed.

    A row has R = 128 lanes. In the rows of "row", "gain" and "slab", each lane belongs to one query
    or distance. In the rows of "offset", "slope" and "rate", the lanes are partial sums, which XLA
    adds up after the kernel.

    Attributes:
      ref: The output of the kernel, `[1, rows, 1, R]`.
      starts: The index of the first row of each sum; sums that are not needed are absent. "offset"
        and "slope" have a row for each segment, and "rate" has one row. Then come "row" and "gain",
        with a row for each chunk of queries, and "slab", with a row for each chunk of distances.
      scratch: Scratch memory `[rows, 8, R]` for the first rows (see `rows_in_scratch`), which
        `finish` writes to `ref` after the head's last tile.
      near: The output of the kernel for the sums near the diagonal, one set for each key strip of
        the block, `[S, U, 8, W]` (see `near_tile.add_near`).
      skewed: Scratch memory `[R, 2 block]` for the gradient of a tile's window of the skewed slab.
    """

    ref: Ref
    starts: dict[str, int]
    scratch: Ref | None
    near: Ref | None
    skewed: Ref | None

    def add(self, name: str, index: Any, value: jax.Array) -> None:
        """Add the sum of `value` `[8, R]` over its 8 sublanes to a row of the sum `name`."""
        if self.scratch is not None and self.starts[name] < self.scratch.shape[0]:
            self.scratch[self.starts[name] + index] += value
        else:
            self.ref[0, self.starts[name] + index] += jnp.sum(value, axis=0, keepdims=True)

    def clear(self) -> None:
        self.ref[...] = jnp.zeros_like(self.ref)
        if self.scratch is not None:
            self.scratch[...] = jnp.zeros_like(self.scratch)

    def finish(self) -> None:
        if self.scratch is not None:
            rows = self.scratch.shape[0]
            self.ref[0, :rows] = jnp.sum(self.scratch[...], axis=1, keepdims=True)
