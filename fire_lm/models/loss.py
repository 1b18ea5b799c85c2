"""Next-token loss of rows of tokens, in training and in evaluation.

Token 0 is padding and is never scored. The input is the target shifted right by one, starting
with 0. B batch, T positions, V vocab.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from fire_lm.models.decoder import Decoder


def shift_right(targets_BT: jax.Array) -> jax.Array:
    """What the model reads when it predicts `targets_BT`."""
    return jnp.pad(targets_BT[:, :-1], ((0, 0), (1, 0)))


def token_losses(
    model: Decoder, params: Any, targets_BT: jax.Array, pos_BT: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Negative log likelihood in nats, log normaliser, and weight (0 for padding); all `[B, T]`.

    `pos_BT` `[B or 1, T]` are the positions of what is read.
    """
    logits_BTV = cast(jax.Array, model.apply({"params": params}, shift_right(targets_BT), pos_BT))
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    # A masked sum, not a gather: it stays local where the vocabulary is split over the mesh.
    is_target_BTV = jnp.arange(logits_BTV.shape[-1])[None, None, :] == targets_BT[:, :, None]
    target_logit_BT = jnp.sum(jnp.where(is_target_BTV, logits_BTV, 0.0), axis=-1)
    return log_z_BT - target_logit_BT, log_z_BT, (targets_BT != 0).astype(jnp.float32)
