"""Softmax attention with all logits in memory: the reference for the other implementations.

Shapes: B batch, T queries, S keys, N heads, H head dim.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from fire_lm.attention.terms import CAUSAL, NO_TERMS, Mask, Terms, Tokens, seen

# The logit of a masked key: low enough that its softmax weight is 0, but not so low that adding a
# finite logit overflows.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def attention_logits(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    queries: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
) -> jax.Array:
    """Return `scale * q·k / sqrt(H) + bias_scale * bias`, `[B, N, T, S]` float32.

    These are the logits of the softmax before the mask is applied.
    """
    logits_BNTS = jnp.einsum(
        "BTNH,BSNH->BNTS", q_BTNH, k_BSNH, preferred_element_type=jnp.float32
    ) / math.sqrt(q_BTNH.shape[-1])
    if terms.logit_scale_BT is not None:
        logits_BNTS = logits_BNTS * terms.logit_scale_BT[:, None, :, None]
    bias_BNTS = None if terms.bias is None else terms.bias(queries.pos, keys.pos)
    if bias_BNTS is None:
        return logits_BNTS
    if terms.bias_scale_BT is not None:
        bias_BNTS = bias_BNTS * terms.bias_scale_BT[:, None, :, None]
    return logits_BNTS + bias_BNTS


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
    (`terms.seen`). If a query sees no key, its output is 0, and no gradient flows through it.
    Logits and softmax are computed in float32. The bias is added after the scaling and before the
    mask is applied.
    """
    logits_BNTS = attention_logits(q_BTNH, k_BSNH, queries, keys, terms)
    seen_BTS = seen(queries, keys, mask)
    weights_BNTS = jax.nn.softmax(jnp.where(seen_BTS[:, None], logits_BNTS, MASKED), axis=-1)
    out_BTNH = jnp.einsum(
        "BNTS,BSNH->BTNH",
        weights_BNTS.astype(v_BSNH.dtype),
        v_BSNH,
        preferred_element_type=jnp.float32,
    )
    # For a query whose keys are all masked, the softmax above is uniform, not 0.
    out_BTNH = jnp.where(jnp.any(seen_BTS, axis=2)[:, :, None, None], out_BTNH, 0.0)
    return out_BTNH.astype(q_BTNH.dtype)
