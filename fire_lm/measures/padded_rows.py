"""Rows padded on the right to a common width, so that rows of similar lengths share a program.

The padding is a segment of its own, which no token attends to, so it changes no prediction. If an
encoding or the positions depend on the length of the input, rows are not padded.

Shape suffixes: B = batch, T = tokens, V = vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from fire_lm.models import Decoder, depends_on_length, keys_seen, readable_length


def padded_width(model: Decoder, tokens: int, exact: bool | None = None) -> int:
    """Return the width of a row of `tokens` tokens: a power of two, at least 32.

    The width is `tokens` if the model cannot read the padding, or if `exact`, which by default
    says whether the model depends on the length of its input.
    """
    if depends_on_length(model, tokens) if exact is None else exact:
        return tokens
    return readable_length(model, tokens, max(32, 1 << (tokens - 1).bit_length()))


def padded_logits(
    model: Decoder, params: Any, inputs_BT: Any, pos_1T: Any, segment_BT: Any
) -> jax.Array:
    """Return the logits of padded rows, float32 `[B, T, V]`.

    All rows share their positions, and therefore the bias. For log n on the bias, they must also
    share the number of keys seen, which the segments would change for padding only.
    """
    logits = model.apply(
        {"params": params}, inputs_BT, pos_1T, segment_BT, seen_BT=keys_seen(inputs_BT.shape[1])
    )
    return cast(jax.Array, logits).astype(jnp.float32)
