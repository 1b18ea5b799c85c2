"""Softmax attention with all logits in memory: the reference for the other implementations.

Shapes: B batch, T queries, S keys, N heads, H head dim. Values may be narrower than queries and
keys; H is then the width of each.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from fire_lm.attention.decay import log_decay_between
from fire_lm.attention.terms import CAUSAL, NO_TERMS, Mask, Terms, Tokens, seen

# The logit of a masked key: low enough that its softmax weight is 0, but not so low that adding a
# finite logit overflows.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def attention_logits(
    q_BTNH: jax.Array, k_BSNH: jax.Array, queries: Tokens, keys: Tokens, terms: Terms = NO_TERMS
) -> jax.Array:
    """Return `scale * q·k / sqrt(H) + bias_scale * bias + c_i - c_j`, `[B, N, T, S]` float32.

    These are the logits of the softmax before the mask is applied. If there is a `mix`, it takes
    the place of the first sum.
    """
    products_BNTS = jnp.einsum(
        "BTNH,BSNH->BNTS", q_BTNH, k_BSNH, preferred_element_type=jnp.float32
    ) / math.sqrt(q_BTNH.shape[-1])
    logits_BNTS = logits_without_decay(products_BNTS, queries.pos, keys.pos, terms)
    if queries.decay is not None and keys.decay is not None:
        logits_BNTS = logits_BNTS + log_decay_between(queries.decay, keys.decay)
    return logits_BNTS


def logits_without_decay(
    products_BNTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array, terms: Terms
) -> jax.Array:
    """Return the logits from `q·k / sqrt(H)` and the positions of queries and keys."""
    if terms.logit_scale_BT is not None:
        products_BNTS = products_BNTS * terms.logit_scale_BT[:, None, :, None]
    bias_BNTS = None if terms.bias is None else terms.bias(q_pos_BT, k_pos_BS)
    if bias_BNTS is not None and terms.bias_scale_BT is not None:
        bias_BNTS = bias_BNTS * terms.bias_scale_BT[:, None, :, None]
    if terms.mix is not None:
        return terms.mix(products_BNTS, bias_BNTS)
    return products_BNTS if bias_BNTS is None else products_BNTS + bias_BNTS


def attention_weights(
    logits_BNTS: jax.Array, seen_BTS: jax.Array, sink_N: jax.Array | None = None
) -> jax.Array:
    """Return the softmax over the keys that a query sees and the sink, without the sink's weight.

    If a query sees no key, its weights are equal.
    """
    logits_BNTS = jnp.where(seen_BTS[:, None], logits_BNTS, MASKED)
    if sink_N is None:
        return jax.nn.softmax(logits_BNTS, axis=-1)
    sink_BNT1 = jnp.broadcast_to(sink_N[:, None, None], (*logits_BNTS.shape[:3], 1))
    return jax.nn.softmax(jnp.concatenate([logits_BNTS, sink_BNT1], axis=-1), axis=-1)[..., :-1]


def dense_attention(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    queries: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
    mask: Mask = CAUSAL,
) -> jax.Array:
    """Return softmax attention, `[B, T, N, H]` in q's dtype.

    The output is v weighted by the softmax of `attention_logits` over the keys that a query sees
    (`terms.seen`) and the sink, whose value is 0. If a query sees no key, its output is 0, and no
    gradient flows through it. Logits and softmax are computed in float32. The bias is added after
    the scaling and before the mask is applied.
    """
    logits_BNTS = attention_logits(q_BTNH, k_BSNH, queries, keys, terms)
    seen_BTS = seen(queries, keys, mask)
    weights_BNTS = attention_weights(logits_BNTS, seen_BTS, terms.sink_N)
    out_BTNH = jnp.einsum(
        "BNTS,BSNH->BTNH",
        weights_BNTS.astype(v_BSNH.dtype),
        v_BSNH,
        preferred_element_type=jnp.float32,
    )
    # For a query whose keys are all masked, the weights are equal, not 0.
    out_BTNH = jnp.where(jnp.any(seen_BTS, axis=2)[:, :, None, None], out_BTNH, 0.0)
    return out_BTNH.astype(q_BTNH.dtype)
