"""The starts of documents in packed rows, and each token's position in its document.

A segment is a run of identical segment ids along a row; padding is also a segment.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fire_lm.attention import Mask


def segment_starts(segment_BT: jax.Array) -> jax.Array:
    """Return whether each token is the first of its segment in the row, bool `[B, T]`."""
    same_BT = segment_BT[:, 1:] == segment_BT[:, :-1]
    return jnp.pad(~same_BT, ((0, 0), (1, 0)), constant_values=True)


def segment_positions(row_pos_BT: jax.Array, segment_BT: jax.Array) -> jax.Array:
    """Return positions `[B, T]` that restart in each segment.

    A segment of k tokens takes the first k positions of the row. This is as if it were a separate
    row unless positions depend on the length of the row, which sweeps and new runs refuse. With
    `BetaPositions`, the row determines the distribution of the distances between positions.

    `row_pos_BT` `[B or 1, T]` contains the positions of a row with a single segment; the values of
    `segment_BT` int32 `[B, T]` change where a new segment starts.
    """
    index_BT = jnp.broadcast_to(jnp.arange(segment_BT.shape[1])[None], segment_BT.shape)
    start_BT = jax.lax.cummax(jnp.where(segment_starts(segment_BT), index_BT, 0), axis=1)
    row_pos_BT = jnp.broadcast_to(row_pos_BT, segment_BT.shape)
    return jnp.take_along_axis(row_pos_BT, index_BT - start_BT, axis=1)


def keys_seen(length: int, segment_BT: jax.Array | None = None) -> jax.Array:
    """Return the number of keys that each token attends to, including itself.

    This number, int32 `[B, T]` or `[1, T]`, is the token's index in its own segment, counted from
    1. It depends neither on the positions of the tokens nor on the padding that follows.
    """
    place_1T = jnp.arange(length, dtype=jnp.int32)[None]
    return 1 + (place_1T if segment_BT is None else segment_positions(place_1T, segment_BT))


def keys_under(mask: Mask, place_BT: jax.Array, segment_BT: jax.Array | None = None) -> jax.Array:
    """Return the number of keys that each token attends to under `mask`, int32 `[B or 1, T]`.

    `place_BT` is the index of each token in its document (see `keys_seen`). Only a mask that is not
    causal needs the document of each token, `segment_BT`.
    """
    first_BT, last_BT = jnp.zeros_like(place_BT), place_BT
    if not mask.causal:
        last_BT = place_BT + _tokens_after(place_BT, segment_BT)
    if mask.window is not None:
        first_BT = jnp.maximum(first_BT, place_BT - (mask.window - 1))
        last_BT = jnp.minimum(last_BT, place_BT + (mask.window - 1))
    if mask.chunk is not None:
        start_BT = place_BT // mask.chunk * mask.chunk
        first_BT = jnp.maximum(first_BT, start_BT)
        last_BT = jnp.minimum(last_BT, start_BT + (mask.chunk - 1))
    return last_BT - first_BT + 1


def _tokens_after(place_BT: jax.Array, segment_BT: jax.Array | None) -> jax.Array:
    """Return the number of tokens that follow each token in its segment."""
    reversed_BT = None if segment_BT is None else segment_BT[:, ::-1]
    return keys_seen(place_BT.shape[1], reversed_BT)[:, ::-1] - 1
