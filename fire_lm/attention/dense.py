"""Softmax attention with all logits in memory: the reference for the other implementations.

Shapes: B batch, T queries, S keys, N heads, H head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

# A function of (q_pos_BT, k_pos_BS) that returns [B, N, T, S] in float32, or None for no bias. It
# is a function so that a blockwise implementation computes only the bias of its current block.
BiasFn = Callable[[jax.Array, jax.Array], jax.Array | None]

# The logit of a masked key: low enough that its softmax weight is 0, but not so low that adding a
# finite logit overflows.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def attention_logits(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    *,
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    bias: BiasFn,
    logit_scale_BT: jax.Array | None = None,
    bias_scale_BT: jax.Array | None = None,
) -> jax.Array:
    """Return `scale * q·k / sqrt(H) + bias_scale * bias`, `[B, N, T, S]` float32.

    These are the logits of the softmax before the causal mask is applied.
    """
    logits_BNTS = jnp.einsum(
        "BTNH,BSNH->BNTS", q_BTNH, k_BSNH, preferred_element_type=jnp.float32
    ) / math.sqrt(q_BTNH.shape[-1])
    if logit_scale_BT is not None:
        logits_BNTS = logits_BNTS * logit_scale_BT[:, None, :, None]
    bias_BNTS = bias(q_pos_BT, k_pos_BS)
    if bias_BNTS is None:
        return logits_BNTS
    if bias_scale_BT is not None:
        bias_BNTS = bias_BNTS * bias_scale_BT[:, None, :, None]
    return logits_BNTS + bias_BNTS


def dense_attention(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    *,
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    bias: BiasFn,
    logit_scale_BT: jax.Array | None = None,
    bias_scale_BT: jax.Array | None = None,
    q_segment_BT: jax.Array | None = None,
    k_segment_BS: jax.Array | None = None,
) -> jax.Array:
    """Return causal softmax attention, `[B, T, N, H]` in q's dtype.

    The output is v weighted by the softmax of `attention_logits`. A query attends to the keys whose
    positions do not exceed its own and, if there are segments, that belong to its own segment. If a
    query has no such key, its output is 0, and no gradient flows through it. Logits and softmax are
    computed in float32. The bias is added after the scaling and before the mask is applied.
    """
    logits_BNTS = attention_logits(
        *(q_BTNH, k_BSNH),
        q_pos_BT=q_pos_BT,
        k_pos_BS=k_pos_BS,
        bias=bias,
        logit_scale_BT=logit_scale_BT,
        bias_scale_BT=bias_scale_BT,
    )
    seen_BTS = k_pos_BS[:, None, :] <= q_pos_BT[:, :, None]
    if q_segment_BT is not None and k_segment_BS is not None:
        seen_BTS = seen_BTS & (k_segment_BS[:, None, :] == q_segment_BT[:, :, None])
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
