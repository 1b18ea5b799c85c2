"""The attention logits of one query and the keys that it sees in one layer.

Shapes: B batch, T positions, S keys, N heads, H head dim.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention import attention_logits, seen
from fire_lm.models.decoder import Decoder
from fire_lm.models.layer_attention import layer_inputs
from fire_lm.models.mixers import Reading


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
