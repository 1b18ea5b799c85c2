"""Next-token loss of rows of tokens, in training and in evaluation.

Token 0 is padding and is never scored. The input is the target shifted right by one, starting
with 0. In packed rows each segment is read as a row of its own: it starts with 0 and at the first
position, and no other segment is seen. B batch, T positions, V vocab.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from fire_lm.models.decoder import Decoder


def shift_right(targets_BT: jax.Array, segment_BT: jax.Array | None = None) -> jax.Array:
    """What the model reads when it predicts `targets_BT`."""
    read_BT = jnp.pad(targets_BT[:, :-1], ((0, 0), (1, 0)))
    if segment_BT is None:
        return read_BT
    return jnp.where(_starts(segment_BT), 0, read_BT)


def segment_positions(row_pos_BT: jax.Array, segment_BT: jax.Array) -> jax.Array:
    """`[B, T]`: in each segment the positions that a row of its own has, from its first.

    `row_pos_BT` `[B or 1, T]` are those of a row; `segment_BT` int32 changes where a segment
    starts.
    """
    index_BT = jnp.broadcast_to(jnp.arange(segment_BT.shape[1])[None], segment_BT.shape)
    start_BT = jax.lax.cummax(jnp.where(_starts(segment_BT), index_BT, 0), axis=1)
    row_pos_BT = jnp.broadcast_to(row_pos_BT, segment_BT.shape)
    return jnp.take_along_axis(row_pos_BT, index_BT - start_BT, axis=1)


def _starts(segment_BT: jax.Array) -> jax.Array:
    """Whether a token is its segment's first in the row."""
    same_BT = segment_BT[:, 1:] == segment_BT[:, :-1]
    return jnp.pad(~same_BT, ((0, 0), (1, 0)), constant_values=True)


def token_losses(
    model: Decoder,
    params: Any,
    targets_BT: jax.Array,
    pos_BT: jax.Array,
    segment_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Negative log likelihood in nats, log normaliser, and weight (0 for padding); all `[B, T]`.

    `pos_BT` `[B or 1, T]` are the positions of what is read, where a row is one segment;
    `segment_BT` int32 `[B, T]` tells the documents of packed rows apart.
    """
    if segment_BT is not None:
        pos_BT = segment_positions(pos_BT, segment_BT)
    read_BT = shift_right(targets_BT, segment_BT)
    logits_BTV = cast(jax.Array, model.apply({"params": params}, read_BT, pos_BT, segment_BT))
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    # A masked sum, not a gather: it stays local where the vocabulary is split over the mesh.
    is_target_BTV = jnp.arange(logits_BTV.shape[-1])[None, None, :] == targets_BT[:, :, None]
    target_logit_BT = jnp.sum(jnp.where(is_target_BTV, logits_BTV, 0.0), axis=-1)
    return log_z_BT - target_logit_BT, log_z_BT, (targets_BT != 0).astype(jnp.float32)
