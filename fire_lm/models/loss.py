"""Next-token losses for rows of tokens, in training and in evaluation.

The input is the target shifted right by one, starting with 0, unless the caller passes another
input. In packed rows, each segment is processed as if it were a separate row: its input starts with
0, and its tokens see no other segment.

Shapes: B batch, T positions, V vocab.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from fire_lm.models.decoder import Decoder
from fire_lm.models.dropout import DROPOUT
from fire_lm.models.mixers import DIAGNOSTICS
from fire_lm.models.positions_of_layers import diagnostics_by_layer
from fire_lm.models.segments import segment_starts


def shift_right(targets_BT: jax.Array, segment_BT: jax.Array | None = None) -> jax.Array:
    """Return the targets shifted right by one, from which the model predicts `targets_BT`.

    A 0 precedes the targets, or the targets of each segment.
    """
    inputs_BT = jnp.pad(targets_BT[:, :-1], ((0, 0), (1, 0)))
    if segment_BT is None:
        return inputs_BT
    return jnp.where(segment_starts(segment_BT), 0, inputs_BT)


def token_losses(
    model: Decoder,
    params: Any,
    targets_BT: jax.Array,
    pos_BT: jax.Array,
    segment_BT: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    inputs_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the negative log likelihood and the log normaliser of each target.

    Args:
      targets_BT: The targets, int32.
      pos_BT: The position of each token, `[B or 1, T]`. In packed rows, the positions must restart
        in each segment (`segment_positions`).
      segment_BT: The documents of packed rows, int32, or None.
      dropout_rng: The key for dropout in training; None disables dropout.
      inputs_BT: The input of the model, int32; None means the targets shifted right by one.

    Returns:
      The negative log likelihoods and the log normalisers in nats, `[B, T]` each.
    """
    losses = diagnosed_losses(
        model, params, targets_BT, pos_BT, segment_BT, dropout_rng, inputs_BT, diagnose=False
    )
    return losses[:2]


def diagnosed_losses(
    model: Decoder,
    params: Any,
    targets_BT: jax.Array,
    pos_BT: jax.Array,
    segment_BT: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    inputs_BT: jax.Array | None = None,
    diagnose: bool = True,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Return what `token_losses` does, and the diagnostics of the mixers if `diagnose` is set."""
    if inputs_BT is None:
        inputs_BT = shift_right(targets_BT, segment_BT)
    rngs = None if dropout_rng is None else {DROPOUT: dropout_rng}
    mutable = [DIAGNOSTICS] if diagnose else []
    logits_BTV, collected = cast(
        tuple[jax.Array, Any],
        model.apply({"params": params}, inputs_BT, pos_BT, segment_BT, rngs=rngs, mutable=mutable),
    )
    diagnostics = diagnostics_by_layer(model, collected.get(DIAGNOSTICS, {}))
    return *target_losses(logits_BTV, targets_BT), diagnostics


def target_losses(logits_BTV: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the negative log likelihoods of targets and the log normalisers, in nats, `[B, T]`."""
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    # Where the vocabulary is split over the mesh, a masked sum, unlike a gather, communicates only
    # partial sums.
    is_target_BTV = jnp.arange(logits_BTV.shape[-1])[None, None, :] == targets_BT[:, :, None]
    target_logit_BT = jnp.sum(jnp.where(is_target_BTV, logits_BTV, 0.0), axis=-1)
    return log_z_BT - target_logit_BT, log_z_BT
