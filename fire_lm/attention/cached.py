"""Attention of one new token to keys that are kept in two caches, and to its own key.

The prompt's keys are shared by the K continuations of an example (beams, samples); each has those
of the tokens that it generated itself.

Shapes: B batch, K continuations, P prompt, T generated, S all keys, N heads, H head dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import MASKED, BiasFn


class CachedKeys(NamedTuple):
    """The rotated keys and the values of one layer."""

    prompt_k_BPNH: jax.Array
    prompt_v_BPNH: jax.Array
    k_BKTNH: jax.Array
    v_BKTNH: jax.Array


def attend_cached(
    q_BKNH: jax.Array,
    k_BKNH: jax.Array,
    v_BKNH: jax.Array,
    cached: CachedKeys,
    *,
    q_pos_B1: jax.Array,
    cached_pos_BS: jax.Array,
    bias: BiasFn,
    logit_scale_B1: jax.Array | None = None,
    bias_scale_B1: jax.Array | None = None,
) -> jax.Array:
    """`[B, K, N, H]` in q's dtype: causal softmax attention, as `dense_attention`.

    All continuations of an example stand at one position. A cached key is seen if its position
    (of the prompt's, then of the generated) is below the query's, so that padding and slots that
    are not written yet stand at the query's position or above it.
    """
    prompt = cached.prompt_k_BPNH.shape[1]
    end = prompt + cached.k_BKTNH.shape[2]
    products = (
        jnp.einsum(equation, q_BKNH, keys, preferred_element_type=jnp.float32)
        for equation, keys in (
            ("BKNH,BPNH->BKNP", cached.prompt_k_BPNH),
            ("BKNH,BKTNH->BKNT", cached.k_BKTNH),
            ("BKNH,BKSNH->BKNS", k_BKNH[:, :, None]),
        )
    )
    logits_BKNS = jnp.concatenate(list(products), axis=-1) / math.sqrt(q_BKNH.shape[-1])
    if logit_scale_B1 is not None:
        logits_BKNS = logits_BKNS * logit_scale_B1[:, :, None, None]
    bias_BN1S = bias(q_pos_B1, jnp.concatenate([cached_pos_BS, q_pos_B1], axis=1))
    if bias_BN1S is not None:
        if bias_scale_B1 is not None:
            bias_BN1S = bias_BN1S * bias_scale_B1[:, None, :, None]
        logits_BKNS = logits_BKNS + jnp.swapaxes(bias_BN1S, 1, 2)
    seen_BS = jnp.pad(cached_pos_BS < q_pos_B1, ((0, 0), (0, 1)), constant_values=True)
    weights_BKNS = jax.nn.softmax(jnp.where(seen_BS[:, None, None], logits_BKNS, MASKED), axis=-1)
    weights_BKNS = weights_BKNS.astype(v_BKNH.dtype)
    out_BKNH = sum(
        jnp.einsum(equation, weights, values, preferred_element_type=jnp.float32)
        for equation, weights, values in (
            ("BKNP,BPNH->BKNH", weights_BKNS[..., :prompt], cached.prompt_v_BPNH),
            ("BKNT,BKTNH->BKNH", weights_BKNS[..., prompt:end], cached.v_BKTNH),
            ("BKNS,BKSNH->BKNH", weights_BKNS[..., end:], v_BKNH[:, :, None]),
        )
    )
    return jnp.asarray(out_BKNH).astype(q_BKNH.dtype)
