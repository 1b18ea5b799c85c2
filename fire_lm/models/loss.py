"""Next-token losses of rows of tokens, in training and in evaluation.

The input is the target shifted right by one, starting with 0, unless the caller passes another
input. In packed rows, each segment is read as if it were a row of its own: it starts with 0 at the
first position, and sees no other segment.

Shapes: B batch, T positions, V vocab.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from fire_lm.models.decoder import Decoder
from fire_lm.models.dropout import DROPOUT
from fire_lm.models.segments import segment_positions, segment_starts


def shift_right(targets_BT: jax.Array, segment_BT: jax.Array | None = None) -> jax.Array:
    """Shift targets right to obtain the inputs from which the model predicts `targets_BT`."""
    read_BT = jnp.pad(targets_BT[:, :-1], ((0, 0), (1, 0)))
    if segment_BT is None:
        return read_BT
    return jnp.where(segment_starts(segment_BT), 0, read_BT)


def token_losses(
    model: Decoder,
    params: Any,
    targets_BT: jax.Array,
    pos_BT: jax.Array,
    segment_BT: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    read_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return negative log likelihood in nats and log normaliser of each target, `[B, T]` each.

    `pos_BT` `[B or 1, T]` holds the positions of the input for rows of one segment; `segment_BT`
    int32 `[B, T]` separates the documents of packed rows. `dropout_rng` is for training: without
    it, nothing is dropped. `read_BT` int32 `[B, T]` is the input of the model; None means the
    targets shifted right by one.
    """
    if segment_BT is not None:
        pos_BT = segment_positions(pos_BT, segment_BT)
    if read_BT is None:
        read_BT = shift_right(targets_BT, segment_BT)
    rngs = None if dropout_rng is None else {DROPOUT: dropout_rng}
    logits_BTV = cast(
        jax.Array, model.apply({"params": params}, read_BT, pos_BT, segment_BT, rngs=rngs)
    )
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    # A masked sum instead of a gather stays local if the vocabulary is split over the mesh.
    is_target_BTV = jnp.arange(logits_BTV.shape[-1])[None, None, :] == targets_BT[:, :, None]
    target_logit_BT = jnp.sum(jnp.where(is_target_BTV, logits_BTV, 0.0), axis=-1)
    return log_z_BT - target_logit_BT, log_z_BT
