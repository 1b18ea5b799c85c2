"""The attention logits of one query and its keys in one layer.

Shapes: B batch, T positions, S keys, N heads, H head dim.
"""

from __future__ import annotations

from typing import Any

import jax

from fire_lm.attention import Terms, Tokens, attention_logits
from fire_lm.models.decoder import Decoder
from fire_lm.models.decoder_layer import Reading
from fire_lm.models.layer_attention import layer_inputs
from fire_lm.models.layer_position import positioned
from fire_lm.models.segments import keys_seen


def query_logits(
    model: Decoder, params: Any, tokens_BT: jax.Array, *, layer: int, query: int
) -> jax.Array:
    """Return logits `[B, N, S]` float32 for keys 0 .. `query`; `layer` and `query` are zero-based.

    The layers below `layer` run as they do in the model. Inside `jax.jit`, only the queries and
    keys of `layer` itself are computed, because the compiler removes its other computations.
    """
    repetition, turn = divmod(layer, len(model.encodings))
    pos_BT = model.resampling.evaluation_positions(tokens_BT.shape[1])
    module, position, q_BTNH, k_BTNH = layer_inputs(
        model, params, tokens_BT, Reading(pos_BT, None), turn=turn, repetition=repetition
    )
    one, seen = slice(query, query + 1), slice(query + 1)
    q_pos_B1, k_pos_BS = pos_BT[:, one], pos_BT[:, seen]
    q_B1NH, k_BSNH, scales, bias = positioned(
        *(module.encoding, module.encoding.prepare(position), module.log_n),
        *(q_BTNH[:, one], k_BTNH[:, seen], q_pos_B1, k_pos_BS),
        seen_BT=keys_seen(query + 1)[:, one],
        context_length=tokens_BT.shape[1],
    )
    logits_BN1S = attention_logits(
        *(q_B1NH, k_BSNH, Tokens(q_pos_B1), Tokens(k_pos_BS)),
        Terms(bias, scales.on_logits_BT, scales.on_bias_BT),
    )
    return logits_BN1S[:, :, 0]
