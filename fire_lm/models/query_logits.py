"""The attention logits of one query and its keys in one layer.

Shapes: B batch, T positions, S keys, N heads, H head dim, D model.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fire_lm.attention import attention_logits
from fire_lm.models.decoder import Decoder
from fire_lm.models.decoder_layer import DecoderLayer, Reading
from fire_lm.models.layer_position import Position, positioned
from fire_lm.models.positions_of_layers import layers_of_turn, shared_params
from fire_lm.models.segments import keys_seen
from fire_lm.positions.base import Params


def query_logits(
    model: Decoder, params: Any, tokens_BT: jax.Array, *, layer: int, query: int
) -> jax.Array:
    """Return logits `[B, N, S]` float32 for keys 0 .. `query`; `layer` and `query` are zero-based.

    The layers below `layer` run as they do in the model. Inside `jax.jit`, only the queries and
    keys of `layer` itself are computed, because the compiler removes its other computations.
    """
    for encoding in model.encodings:
        encoding.check_length(tokens_BT.shape[1], tokens_BT.shape[1])
    pos_BT = model.resampling.evaluation_positions(tokens_BT.shape[1])
    first = shared_params(model, params, 0) if model.share_position else {}
    x_BTD = jnp.take(params["embedding"].astype(model.dtype), tokens_BT, axis=0)
    x_BTD = model.encodings[0].embed(first, x_BTD, pos_BT)
    for below in range(layer):
        module, own, shared = layer_of(model, params, below)
        x_BTD, _ = module.apply({"params": own}, x_BTD, Reading(pos_BT, None), shared, None)

    module, own, shared = layer_of(model, params, layer)
    _, state = module.apply(
        *({"params": own}, x_BTD, Reading(pos_BT, None), shared, None),
        capture_intermediates=_is_query_or_key,
    )
    q_BTNH, k_BTNH = (state["intermediates"][name]["__call__"][0] for name in ("query", "key"))
    position = shared.params if shared else own.get("position", {})
    one, seen = slice(query, query + 1), slice(query + 1)
    q_pos_B1, k_pos_BS = pos_BT[:, one], pos_BT[:, seen]
    q_B1NH, k_BSNH, scales, bias = positioned(
        *(module.encoding, module.encoding.prepare(position), model.log_n),
        *(q_BTNH[:, one], k_BTNH[:, seen], q_pos_B1, k_pos_BS),
        seen_BT=keys_seen(query + 1)[:, one],
        context_length=tokens_BT.shape[1],
    )
    logits_BN1S = attention_logits(
        *(q_B1NH, k_BSNH),
        q_pos_BT=q_pos_B1,
        k_pos_BS=k_pos_BS,
        bias=bias,
        logit_scale_BT=scales.on_logits_BT,
        bias_scale_BT=scales.on_bias_BT,
    )
    return logits_BN1S[:, :, 0]


def layer_of(
    model: Decoder, params: Any, layer: int
) -> tuple[DecoderLayer, Params, Position | None]:
    """Return the module of a layer, its own parameters, and the `Position` that it shares.

    The `Position` is None if the layer shares no parameters with other layers.
    """
    repetition, turn = divmod(layer, len(model.encodings))
    # A single text is too small to be split over a mesh, and a kernel can run on several devices
    # only if its input is split, so this module uses no kernel.
    module = DecoderLayer(model.size, model.encodings[turn], model.log_n, "blockwise", False, None)
    own = jax.tree.map(lambda leaf: leaf[repetition], layers_of_turn(model, params, turn))
    if not model.share_position:
        return module, own, None
    prepared = model.encodings[turn].prepare(shared_params(model, params, turn))
    return module, own, Position(prepared, None)


def _is_query_or_key(module: nn.Module, method: str) -> bool:
    return module.name in ("query", "key") and method == "__call__"
