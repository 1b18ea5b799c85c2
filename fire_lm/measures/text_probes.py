"""What a model computes for one text: its logits, losses and attention, as NumPy arrays.

Texts are padded (padded_rows.py), so that texts of similar lengths share a compiled program.

Shapes: T = tokens of a text with the token 0 before it, W = tokens with padding, N = heads, V =
vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.measures.padded_rows import padded_logits, padded_width
from fire_lm.models import Decoder, check_decoder, layer_attention
from fire_lm.models.loss import target_losses

# Up to this length, all logits of a layer's attention are computed at once, which compiles faster.
_DENSE = 1024


class AttentionMap(NamedTuple):
    """The attention of one layer over a text, float32 `[N, T, T]` by head, query and key.

    Attributes:
      weights: The attention weights of each query, which add up to 1; 0 for keys that the query
        does not see: later keys, and those beyond the window or in other chunks.
      products: Scaled q·k, including any scale of the encoding and of log n; NaN for unseen keys.
      bias: The encoding's bias, including any scale of log n, or 0 without a bias; NaN for unseen
        keys. The weights are the softmax of `products + bias`, unless the encoding mixes the
        logits of heads (DAPE) or a sink takes a share.
    """

    weights: np.ndarray
    products: np.ndarray
    bias: np.ndarray


def text_logits(model: Decoder, params: Any, ids: np.ndarray) -> np.ndarray:
    """Return the logits of the token that follows each token, float32 `[T, V]`.

    Args:
      model, params: The model, a decoder, and its parameters.
      ids: The tokens of the text, without the token 0, which the model reads before them.

    Raises:
      UserError: The model cannot read as many tokens, or is an encoder.
    """
    check_decoder(model)
    logits_WV = _logits(_for_texts(model, len(ids) + 1), params, *_padded(model, ids))
    return np.asarray(logits_WV)[: len(ids) + 1]


def text_losses(model: Decoder, params: Any, ids: np.ndarray) -> np.ndarray:
    """Return the loss of each token of the text given those before it, in nats, float32 `[T - 1]`.

    See `text_logits`.
    """
    check_decoder(model)
    tokens, *rest = _padded(model, ids)
    targets_W = np.zeros(tokens.shape[1], np.int32)
    targets_W[: len(ids)] = ids
    losses_W = _losses(_for_texts(model, len(ids) + 1), params, tokens, *rest, targets_W)
    return np.asarray(losses_W)[: len(ids)]


def attention_map(model: Decoder, params: Any, ids: np.ndarray, layer: int) -> AttentionMap:
    """Return the attention of one layer over the text.

    A decoder reads the token 0 before the text, an encoder the text alone.

    Raises:
      UserError: The model has no such layer, or cannot read as many tokens.
    """
    layers = model.size.num_layers
    if not -layers <= layer < layers:
        raise UserError(
            f"layer is {layer}: it must be from 0 to {layers - 1}, or from -{layers} to -1"
        )
    if not (model.causal or len(ids)):
        raise UserError("the text has no tokens: an encoder reads at least one")
    repetition, turn = divmod(layer % layers, len(model.encodings))
    text = _padded(model, ids)
    arrays = _attention(model, params, *text, turn=turn, repetition=jnp.int32(repetition))
    length = len(ids) + model.causal
    weights, products, bias, seen = (np.array(x)[0, ..., :length, :length] for x in arrays)
    products[:, ~seen] = bias[:, ~seen] = np.nan
    return AttentionMap(weights, products, bias)


def _for_texts(model: Decoder, tokens: int) -> Decoder:
    """Return the model as it reads single texts: a loop over layers, and no kernel.

    A kernel can run on several devices only if its input is split over them.
    """
    dense = padded_width(model, tokens) <= _DENSE
    return model.clone(
        scan_layers=True,
        remat="none",
        attention="dense" if dense else "blockwise",
        activation_sharding=None,
    )


def _padded(model: Decoder, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens, positions and segments of a text, each `[1, W]`."""
    begin = int(model.causal)
    length = begin + len(ids)
    width = padded_width(model, length)
    tokens_1W, segment_1W = np.zeros((2, 1, width), np.int32)
    tokens_1W[0, begin:length] = ids
    segment_1W[0, :length] = 1
    return tokens_1W, np.asarray(model.resampling.evaluation_positions(width)), segment_1W


@functools.partial(jax.jit, static_argnums=0)
def _logits(model: Decoder, params: Any, tokens_1W: Any, pos_1W: Any, segment_1W: Any) -> jax.Array:
    """Return the logits of a padded text, `[W, V]`."""
    return padded_logits(model, params, tokens_1W, pos_1W, segment_1W)[0]


@functools.partial(jax.jit, static_argnums=0)
def _losses(
    model: Decoder, params: Any, tokens_1W: Any, pos_1W: Any, segment_1W: Any, targets_W: Any
) -> jax.Array:
    """Return the losses of a padded text, `[W]`."""
    logits_1WV = _logits(model, params, tokens_1W, pos_1W, segment_1W)[None]
    return target_losses(logits_1WV, targets_W[None])[0][0]


# All layers with the encoding of a turn share a program.
_attention = jax.jit(layer_attention, static_argnums=0, static_argnames="turn")
