"""The attention of one layer of a model: queries, keys, q·k, bias and weights of all positions.

Shapes: B batch, T positions, S keys, N heads, H head dim, D model, R repetitions of the encodings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fire_lm.attention import Terms, attention_logits, seen
from fire_lm.attention.decay import log_decay_between
from fire_lm.attention.dense import attention_weights
from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder
from fire_lm.models.decoder_layer import Common, DecoderLayer
from fire_lm.models.layer_position import Position, log_decay
from fire_lm.models.mixers import Attention, LayerSpec, Reading
from fire_lm.models.mixers.attention import Heads, PerHead, heads
from fire_lm.models.positions_of_layers import layers_of_turn, shared_params
from fire_lm.positions.base import Params


class LayerInputs(NamedTuple):
    """What attention in a layer needs: its queries and keys before rotation, and its encoding.

    `position` contains the encoding's parameters in this layer, not prepared. `y_BTD` is the normed
    input of the layer.
    """

    layer: DecoderLayer
    position: Params
    q_BTNH: jax.Array
    k_BTNH: jax.Array
    y_BTD: jax.Array
    per_head: PerHead

    def heads(self, reading: Reading) -> Heads:
        """Return the queries and keys as the encoding transforms them, and the other terms."""
        spec = self.layer.spec
        params = spec.encoding.prepare(self.position)
        log_decay_BTN = log_decay(spec.encoding, params, self.y_BTD)
        q_BTNH, k_BTNH = self.q_BTNH, self.k_BTNH
        return heads(spec, params, q_BTNH, k_BTNH, reading, self.per_head, log_decay_BTN)


class LayerAttention(NamedTuple):
    """The attention of one layer, `[B, N, T, S]` float32 each, for all keys, also unseen ones.

    Attributes:
      weights: The softmax over the keys that a query sees and the sink, of `products + bias` unless
        the encoding mixes the logits of heads (DAPE); 0 for the others.
      products: Scaled q·k, including any scale of the encoding and of log n.
      bias: The encoding's bias, including any scale of log n, and the decay of forget gates; 0
        without either.
      seen_BTS: Whether each query sees each key, bool `[B or 1, T, S]`.
    """

    weights: jax.Array
    products: jax.Array
    bias: jax.Array
    seen_BTS: jax.Array


def layer_attention(
    model: Decoder,
    params: Any,
    tokens_BT: jax.Array,
    pos_BT: jax.Array,
    segment_BT: jax.Array | None,
    *,
    turn: int,
    repetition: jax.Array | int,
) -> LayerAttention:
    """Return the attention in the layer `repetition * len(model.encodings) + turn`.

    `repetition` may be traced, so that one program serves all layers with the same encoding.
    """
    reading = Reading(pos_BT, segment_BT)
    inputs = layer_inputs(model, params, tokens_BT, reading, turn=turn, repetition=repetition)
    q_BTNH, k_BSNH, tokens, terms = inputs.heads(reading)
    alone = tokens._replace(decay=None)
    products_BNTS = attention_logits(
        q_BTNH, k_BSNH, alone, alone, Terms(logit_scale_BT=terms.logit_scale_BT)
    )
    bias = None if terms.bias is None else terms.bias(pos_BT, pos_BT)
    bias_BNTS = jnp.zeros(products_BNTS.shape) if bias is None else bias
    if terms.bias_scale_BT is not None:
        bias_BNTS = bias_BNTS * terms.bias_scale_BT[:, None, :, None]
    if tokens.decay is not None:
        bias_BNTS = bias_BNTS + log_decay_between(tokens.decay, tokens.decay)
    bias_BNTS = jnp.broadcast_to(bias_BNTS, products_BNTS.shape)
    seen_BTS = seen(tokens, tokens, inputs.layer.spec.mask)
    logits_BNTS = attention_logits(q_BTNH, k_BSNH, tokens, tokens, terms)
    weights_BNTS = attention_weights(logits_BNTS, seen_BTS, terms.sink_N)
    return LayerAttention(weights_BNTS, products_BNTS, bias_BNTS, seen_BTS)


def query_logits(
    model: Decoder, params: Any, tokens_BT: jax.Array, *, layer: int, query: int
) -> jax.Array:
    """Return logits `[B, N, S]` float32 for keys 0 .. `query`; `layer` and `query` are zero-based.

    The logits of keys that the query does not see, such as those beyond a window, are -inf.
    The layers below `layer` run as they do in the model. Inside `jax.jit`, only the queries and
    keys of `layer` itself are computed, because the compiler removes its other computations.
    """
    repetition, turn = divmod(layer, len(model.encodings))
    pos_BT = model.resampling.evaluation_positions(tokens_BT.shape[1])
    reading = Reading(pos_BT)
    inputs = layer_inputs(model, params, tokens_BT, reading, turn=turn, repetition=repetition)
    q_BTNH, k_BTNH, tokens, terms = inputs.heads(reading)
    one, until = slice(query, query + 1), slice(query + 1)
    of_query, of_keys = (
        jax.tree.map(lambda x_BT: x_BT[:, part], tokens)  # noqa: B023
        for part in (one, until)
    )
    scales = (terms.logit_scale_BT, terms.bias_scale_BT)
    logit_scale_B1, bias_scale_B1 = jax.tree.map(lambda x_BT: x_BT[:, one], scales)
    terms = terms._replace(logit_scale_BT=logit_scale_B1, bias_scale_BT=bias_scale_B1)
    logits_BN1S = attention_logits(q_BTNH[:, one], k_BTNH[:, until], of_query, of_keys, terms)
    seen_B1S = seen(of_query, of_keys, inputs.layer.spec.mask)
    return jnp.where(seen_B1S, logits_BN1S[:, :, 0], -jnp.inf)


def layer_inputs(
    model: Decoder,
    params: Any,
    tokens_BT: jax.Array,
    reading: Reading,
    *,
    turn: int,
    repetition: jax.Array | int,
) -> LayerInputs:
    """Return what attention needs in a layer; see `layer_attention` for its index.

    The layers below run as they do in the model. The program loops over layers, so the time to
    compile it does not grow with their number.

    Raises:
      UserError: The layer has no attention.
    """
    if not isinstance(mixer := model.turns[turn].mixer, Attention):
        raise UserError(
            f"layers with {type(mixer).__name__} have no queries and keys: choose another layer"
        )
    for encoding in model.encodings:
        encoding.check_length(tokens_BT.shape[1], tokens_BT.shape[1])
    first = shared_params(model, params, 0) if model.share_position else {}
    x_BTD = jnp.take(params["embedding"].astype(model.dtype), tokens_BT, axis=0)
    x_BTD = model.encodings[0].embed(first, x_BTD, reading.pos_BT)
    # A single text is too small to be split over a mesh, and a kernel can run on several devices
    # only if its input is split, so this module uses no kernel.
    modules = [
        DecoderLayer(
            LayerSpec(model.size, each.encoding, each.mask, each.log_n, "blockwise", False),
            each.mixer,
        )
        for each in model.turns
    ]
    own = [layers_of_turn(model, params, index) for index in range(len(modules))]
    raw = [shared_params(model, params, index) for index in range(len(modules))]
    common = [Common(None)] * len(modules)
    if model.share_position:
        pairs = zip(model.encodings, raw, strict=True)
        common = [Common(Position(encoding.prepare(p), None)) for encoding, p in pairs]

    def repeated(x_BTD: jax.Array, own_of_turns: list[Params]) -> tuple[jax.Array, jax.Array]:
        before = x_BTD
        for index, (module, own) in enumerate(zip(modules, own_of_turns, strict=True)):
            if index == turn:
                before = x_BTD
            x_BTD, _ = module.apply({"params": own}, x_BTD, reading, common[index], None)
        return x_BTD, before

    _, before_RBTD = jax.lax.scan(repeated, x_BTD, own)
    module, own_R = modules[turn], own[turn]
    chosen = jax.tree.map(lambda leaf: leaf[repetition], own_R)
    _, state = module.apply(
        {"params": chosen},
        before_RBTD[repetition],
        reading,
        common[turn],
        None,
        capture_intermediates=_is_input,
    )
    q_BTNH, k_BTNH, y_BTD = (state["intermediates"][name]["__call__"][0] for name in _INPUTS)
    position = raw[turn] if model.share_position else chosen.get("position", {})
    return LayerInputs(module, position, q_BTNH, k_BTNH, y_BTD, PerHead.of_layer(chosen))


_INPUTS = ("query", "key", "attention_norm")


def _is_input(module: nn.Module, method: str) -> bool:
    return module.name in _INPUTS and method == "__call__"
