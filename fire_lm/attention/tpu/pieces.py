"""The pieces in which a kernel computes the attention of a tile, and the mask of each piece.

A tile whose queries all see all of its keys is one piece. On the diagonal, and where the window of
some queries ends, each piece has 128 keys and those strips of queries in which some query sees some
of these keys. This skips up to three eighths of a tile on the diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.tpu.schedule import LANES, Blocks

# The base-2 logit of a masked key: its softmax weight is 0, and the sum of two such logits does not
# overflow.
MASKED = -1e30


class Place(NamedTuple):
    """Tiles that share their code: on the diagonal, wholly seen, or at the edge of the window.

    Attributes:
      name: The end of the names of scopes.
      first, last: The smallest and the largest number of blocks from the keys of the tiles to their
        queries. The last is None if it has no limit; the first is then 1.
      masked: Whether some query of a tile does not see some key.
    """

    name: str
    first: int
    last: int | None
    masked: bool

    def holds(self, query_block: jax.Array, key_block: jax.Array) -> jax.Array:
        """Return whether a tile is at this place."""
        if self.first == 0:
            return query_block == key_block
        if self.last is None:
            return query_block != key_block
        apart = query_block - key_block
        return (apart >= self.first) & (apart <= self.last)


class Piece(NamedTuple):
    """A part of a tile.

    Attributes:
      keys, queries: The slices of the tile.
      causal: Whether to mask the keys after each query. The first key and the first query are then
        the same token.
      beyond: Which keys to mask at the edge of the window: those whose index in the piece is less
        than that of the query plus this number, or equal; None if there are none.
    """

    keys: slice
    queries: slice
    causal: bool = False
    beyond: int | None = None

    def masked(self, s: jax.Array) -> jax.Array:
        """Mask the logits `[keys, queries]` of the keys that a query does not see."""
        if not self.causal and self.beyond is None:
            return s
        key, query = (jax.lax.broadcasted_iota(jnp.int32, s.shape, axis) for axis in (0, 1))
        if self.causal:
            s = jnp.where(key <= query, s, MASKED)
        if self.beyond is not None:
            s = jnp.where(key > query + self.beyond, s, MASKED)
        return s


def places(blocks: Blocks) -> list[Place]:
    """Return the places of all tiles."""
    diagonal = Place("diagonal", 0, 0, True)
    if blocks.window is None or blocks.reach is None:
        return [diagonal, Place("below", 1, None, False)]
    # The first block of queries, counted from the block of keys, that does not see all of them.
    edge = max(1, -(-(blocks.window - blocks.tokens + 1) // blocks.tokens))
    below = [Place("below", 1, edge - 1, False)] if edge > 1 else []
    at_edge = [
        Place(f"edge_{apart}", apart, apart, True) for apart in range(edge, blocks.reach + 1)
    ]
    return [diagonal, *below, *at_edge]


def pieces(blocks: Blocks, place: Place) -> list[Piece]:
    """Return the pieces of the tiles at a place."""
    tokens, window = blocks.tokens, blocks.window
    if not place.masked:
        return [Piece(slice(0, tokens), slice(0, tokens))]
    found = []
    for key in range(0, tokens, LANES):
        query, end, beyond = (key if place.first == 0 else 0), tokens, None
        if window is not None:
            apart = place.first * tokens + query - key  # from the first key to the first query
            past = query + window - apart + LANES - 1  # the first query that sees none of the keys
            end = min(tokens, -(-past // LANES) * LANES)
            if apart + end - query > window:
                beyond = apart - window
        if end > query:
            found.append(
                Piece(slice(key, key + LANES), slice(query, end), place.first == 0, beyond)
            )
    return found
