"""The parts of each tile in the order in which the kernels process them.

A kernel has separate code for each kind of part: for each number of kinks that a first pass adds,
and for the parts near the diagonal. Which parts are of which kind is known when the program runs.
XLA sorts the parts of each tile by kind, so that a kernel runs one loop for each kind and needs no
test for a part.

The lists of a tile are int32 numbers in scalar memory:

    the number of parts before those of each kind, and of all kinds
    the parts, ordered by kind
    the number of parts with further kinks than those of the first pass
    all parts, those with further kinks first

Shapes: E examples with different positions (or 1), X tiles, S strips of 128 in a block, P = S²
parts of a tile, in the order of `schedule.live_segments`, W numbers in the lists of a tile.
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
      block: The number of strips, 0 or 1, between the strips of the keys and of the queries.
      rounds: The number of kinks, 1 to ROUNDS, for which the code has terms.
    """

    block: int
    rounds: int


# The kinds: parts with 0 to KINKS kinks in the first pass, then parts near the diagonal. The lists
# omit the parts above the diagonal.
NEAR = tuple(Near(block, rounds) for block in range(2) for rounds in range(1, ROUNDS + 1))
KINDS = (
    *(str(kinks) for kinks in range(KINKS + 1)),
    *(f"near_{near.block}_{near.rounds}" for near in NEAR),
)
FIRST_NEAR = KINKS + 1

_BITS = 8  # for each field of an entry
_MASK = 2**_BITS - 1
MOST_SEGMENTS = 2**_BITS


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


def part_lists(
    live_EX1P: jax.Array, near_XP: jax.Array | None, blocks: Blocks, order: Order
) -> jax.Array:
    """Return the lists of each tile, int32 `[E, X, 1, W]`.

    Args:
      live_EX1P: The first and last segments of each part (see `Tables.live_segments`).
      near_XP: The index in NEAR of each part that is built from tables by distance, -1 for the
        others; or None if there are no such tables.
      blocks, order: The blocks and the order of the tiles.
    """
    parts = blocks.strips**2
    query_P, key_P = np.divmod(np.arange(parts, dtype=np.int32), blocks.strips)
    query_X, key_X = tiles(blocks, order)
    seen_XP = (query_X != key_X)[:, None] | (query_P >= key_P)

    def of_example(live_X1P: jax.Array) -> jax.Array:
        first_XP, last_XP = jnp.unstack(live_X1P.reshape(-1, parts, 2), axis=2)
        kinks_XP = last_XP - first_XP
        kind_XP = jnp.where(kinks_XP > 0, (kinks_XP - 1 & KINKS - 1) + 1, 0)
        further_XP = seen_XP & (kinks_XP > KINKS)
        if near_XP is not None:
            kind_XP = jnp.where(near_XP >= 0, FIRST_NEAR + near_XP, kind_XP)
            further_XP = further_XP & (near_XP < 0)
        kind_XP = jnp.where(seen_XP, kind_XP, len(KINDS))
        entry_XP = Entry(query_P[None], key_P[None], first_XP, last_XP)
        before = kind_XP[:, :, None] < np.arange(len(KINDS) + 1)[None, None]
        lists = (
            jnp.sum(before, axis=1, dtype=jnp.int32),
            _sorted(entry_XP.packed(), kind_XP),
            jnp.sum(further_XP, axis=1, keepdims=True, dtype=jnp.int32),
            _sorted(entry_XP.packed(), jnp.where(further_XP, 0, 1)),
        )
        return jnp.concatenate(lists, axis=1)[:, None]

    return jax.vmap(of_example)(live_EX1P)


def _sorted(entry_XP: jax.Array, key_XP: jax.Array) -> jax.Array:
    """Return the entries of each tile sorted by their keys; equal keys keep their order."""
    # A few comparisons and sums of a tile's entries are one small kernel, unlike a sort on a TPU.
    place_P = np.arange(key_XP.shape[1])
    one_XPP, other_XPP = key_XP[:, :, None], key_XP[:, None, :]
    earlier_XPP = (place_P[None, :] < place_P[:, None])[None]
    comes_first = (other_XPP < one_XPP) | ((other_XPP == one_XPP) & earlier_XPP)
    rank_XP = jnp.sum(comes_first, axis=2, dtype=jnp.int32)
    at_rank = rank_XP[:, None, :] == place_P[None, :, None]
    return jnp.sum(jnp.where(at_rank, entry_XP[:, None, :], 0), axis=2, dtype=jnp.int32)
