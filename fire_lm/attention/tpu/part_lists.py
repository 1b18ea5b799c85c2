"""The parts of each tile in the order in which the kernels process them.

A kernel has separate code for each kind of part: for each number of kinks that a first pass over a
part adds, and for the parts near the diagonal; a common loop makes all further passes. Which parts
are of which kind is known only when the program runs. XLA sorts the parts of each tile by kind, so
that the kernel runs one loop for each kind and needs no test for each part.

The lists of a tile are int32 numbers in scalar memory:

    the number of parts before those of each kind, and of all kinds
    the parts, ordered by kind, then those in which no query sees a key, which no kind counts
    the number of parts that need further passes
    all parts, starting with the parts that need further passes

Shapes: E examples with different positions (or 1), X tiles, S strips of 128 in a block, J = S²
parts of a tile, in the order of `schedule.live_segments`, I numbers in the lists of a tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.tpu.schedule import Blocks, Order, tiles

# The largest number of kinks that one pass over a part adds. With 8, the code would be twice as
# long and save less than 1 % of the bundles. The number is a power of 2 to avoid a division:
# libtpu's compiler would query a TPU about its sign.
KINKS = 4

# The largest number of kinks that x may cross at one distance within a strip of 128 keys if the
# parts of the strip near the diagonal are to be built from tables by distance (`near_tables`).
ROUNDS = 2


class Near(NamedTuple):
    """A kind of parts that are built from tables by distance.

    Attributes:
      block: The index of the query strip minus that of the key strip, 0 or 1.
      rounds: The number of kinks, 1 to ROUNDS, for which the code has terms.
    """

    block: int
    rounds: int


# The kinds: parts with 0 to KINKS kinks in the first pass, then parts near the diagonal.
NEAR = tuple(Near(block, rounds) for block in range(2) for rounds in range(1, ROUNDS + 1))
KINDS = (
    *(str(kinks) for kinks in range(KINKS + 1)),
    *(f"near_{near.block}_{near.rounds}" for near in NEAR),
)
FIRST_NEAR = KINKS + 1

_BITS = 8  # for each field of an entry
_MASK = 2**_BITS - 1
MOST_KINKS = _MASK


class Layout(NamedTuple):
    """The indices in the lists of a tile at which the parts of each of the two lists start.

    The number of parts in the second list is at the index before its start.
    """

    parts: int
    further: int

    @classmethod
    def of(cls, strips: int) -> Layout:
        parts = len(KINDS) + 1
        return cls(parts, parts + strips**2 + 1)


class Entry(NamedTuple):
    """A part of a tile: its strips of queries and keys, and its first and last segment."""

    query: Any
    key: Any
    first: Any
    last: Any

    def packed(self) -> Any:
        query, key, first, last = self
        return ((query << _BITS | key) << _BITS | first) << _BITS | last

    @classmethod
    def of(cls, packed: Any) -> Entry:
        return cls(*((packed >> (_BITS * place)) & _MASK for place in (3, 2, 1, 0)))


def further_passes(kinks: Any) -> Any:
    """Return the number of passes after the first, each of which adds `KINKS` kinks.

    A part without kinks has -1.
    """
    return (kinks - 1) >> (KINKS.bit_length() - 1)


def part_lists(
    live_EX1Q: jax.Array, near_XJ: jax.Array | None, blocks: Blocks, order: Order
) -> jax.Array:
    """Return the lists of each tile, int32 `[E, X, 1, I]`.

    Args:
      live_EX1Q: The first and last segments of each part (see `Tables.live_segments`).
      near_XJ: The index in NEAR of each part that is built from tables by distance, -1 for the
        others; or None if there are no such tables.
      blocks, order: The blocks and the order of the tiles.
    """
    parts = blocks.strips**2
    query_J, key_J = np.divmod(np.arange(parts, dtype=np.int32), blocks.strips)
    query_X, key_X, *_ = tiles(blocks, order)
    apart_XJ = blocks.strips * (query_X - key_X)[:, None] + (query_J - key_J)[None]
    seen_XJ = apart_XJ >= 0
    if blocks.reach_of_strips is not None:
        seen_XJ = seen_XJ & (apart_XJ <= blocks.reach_of_strips)

    def of_example(live_X1Q: jax.Array) -> jax.Array:
        first_XJ, last_XJ = jnp.unstack(live_X1Q.reshape(-1, parts, 2), axis=2)
        entry_XJ = Entry(query_J[None], key_J[None], first_XJ, last_XJ)
        kinks_XJ = last_XJ - first_XJ
        further_XJ = seen_XJ & (further_passes(kinks_XJ) > 0)
        kind_XJ = kinks_XJ - KINKS * jnp.maximum(further_passes(kinks_XJ), 0)
        if near_XJ is not None:
            kind_XJ = jnp.where(near_XJ >= 0, FIRST_NEAR + near_XJ, kind_XJ)
            further_XJ = further_XJ & (near_XJ < 0)
        kind_XJ = jnp.where(seen_XJ, kind_XJ, len(KINDS))
        before = kind_XJ[:, :, None] < np.arange(len(KINDS) + 1)[None, None]
        lists = (
            jnp.sum(before, axis=1, dtype=jnp.int32),
            _sorted(entry_XJ.packed(), kind_XJ),
            jnp.sum(further_XJ, axis=1, keepdims=True, dtype=jnp.int32),
            _sorted(entry_XJ.packed(), jnp.where(further_XJ, 0, 1)),
        )
        return jnp.concatenate(lists, axis=1)[:, None]

    return jax.vmap(of_example)(live_EX1Q)


def _sorted(entry_XJ: jax.Array, key_XJ: jax.Array) -> jax.Array:
    """Return the entries of each tile sorted by their keys; equal keys keep their order."""
    # A few comparisons and sums of a tile's entries are one small kernel, unlike a sort on a TPU.
    place_J = np.arange(key_XJ.shape[1])
    one_XJJ, other_XJJ = key_XJ[:, :, None], key_XJ[:, None, :]
    earlier_XJJ = (place_J[None, :] < place_J[:, None])[None]
    comes_first = (other_XJJ < one_XJJ) | ((other_XJJ == one_XJJ) & earlier_XJJ)
    rank_XJ = jnp.sum(comes_first, axis=2, dtype=jnp.int32)
    at_rank = rank_XJ[:, None, :] == place_J[None, :, None]
    return jnp.sum(jnp.where(at_rank, entry_XJ[:, None, :], 0), axis=2, dtype=jnp.int32)
