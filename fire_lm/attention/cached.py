"""Attention from one new token to its own key and to the keys in two caches.

The K continuations of an example (beams or samples) share the cache of the prompt's keys. In
addition, each continuation has a cache for the keys of its generated tokens.

Shapes: B batch, K continuations, P prompt, T generated, S all keys, N heads, H head dim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import MASKED
from fire_lm.attention.terms import NO_TERMS, Terms, Tokens


class CachedKeys(NamedTuple):
    """The cached keys (after any rotation by the encoding) and values of one layer.

    The prompt axis comes last because a long prompt fills the lanes of a vector unit: decoding
    steps then read the cache 2 to 3 times as fast as with H last, as measured on a CPU and as
    estimated by the TPU compiler.
    """

    prompt_k_BNHP: jax.Array
    prompt_v_BNHP: jax.Array
    k_BKTNH: jax.Array
    v_BKTNH: jax.Array


def attend_cached(
    q_BKNH: jax.Array,
    k_BKNH: jax.Array,
    v_BKNH: jax.Array,
    cached: CachedKeys,
    query: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
) -> jax.Array:
    """Return causal softmax attention as in `dense_attention`, `[B, K, N, H]` in q's dtype.

    All continuations of an example are at the same position, so `query` and the scales have one
    token for each example. `keys` are the prompt's keys, followed by the generated keys. The query
    attends to a cached key only if the key's position is below its own. Padding and slots that have
    not been written yet must therefore have the query's position or a higher one.

    The logits of the prompt's keys, of the generated keys and of the token's own key are kept in
    separate arrays: concatenating them would copy them into a layout that suits none of the three.
    """
    prompt = cached.prompt_k_BNHP.shape[3]
    q_pos_B1 = query.pos
    pos_of_parts = (keys.pos[:, :prompt], keys.pos[:, prompt:], q_pos_B1)
    products = (
        jnp.einsum(equation, q_BKNH, part, preferred_element_type=jnp.float32)
        for equation, part in (
            ("BKNH,BNHP->BNKP", cached.prompt_k_BNHP),
            ("BKNH,BKTNH->BNKT", cached.k_BKTNH),
            ("BKNH,BKSNH->BNKS", k_BKNH[:, :, None]),
        )
    )
    parts = []
    for logits_BNKS, pos_BS in zip(products, pos_of_parts, strict=True):
        logits_BNKS = logits_BNKS / math.sqrt(q_BKNH.shape[-1])
        if terms.logit_scale_BT is not None:
            logits_BNKS = logits_BNKS * terms.logit_scale_BT[:, :, None, None]
        bias_BN1S = None if terms.bias is None else terms.bias(q_pos_B1, pos_BS)
        if bias_BN1S is not None:
            if terms.bias_scale_BT is not None:
                bias_BN1S = bias_BN1S * terms.bias_scale_BT[:, None, :, None]
            logits_BNKS = logits_BNKS + bias_BN1S
        if pos_BS is not q_pos_B1:
            seen_BS = pos_BS < q_pos_B1
            logits_BNKS = jnp.where(seen_BS[:, None, None], logits_BNKS, MASKED)
        parts.append(logits_BNKS)
    out_BKNH = sum(
        jnp.einsum(
            equation, weights.astype(v_BKNH.dtype), values, preferred_element_type=jnp.float32
        )
        for equation, weights, values in zip(
            ("BNKP,BNHP->BKNH", "BNKT,BKTNH->BKNH", "BNKS,BKSNH->BKNH"),
            _softmax(parts),
            (cached.prompt_v_BNHP, cached.v_BKTNH, v_BKNH[:, :, None]),
            strict=True,
        )
    )
    return jnp.asarray(out_BKNH).astype(q_BKNH.dtype)


def _softmax(parts: Sequence[jax.Array]) -> list[jax.Array]:
    """Compute the softmax of the parts as if they were concatenated along the last axis."""
    largest = functools.reduce(jnp.maximum, (jnp.max(x, -1, keepdims=True) for x in parts))
    weights = [jnp.exp(x - largest) for x in parts]
    total = sum(jnp.sum(x, -1, keepdims=True) for x in weights)
    return [x / total for x in weights]
