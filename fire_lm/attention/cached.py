"""Attention from one new token to its own key and to the keys in two caches.

The K continuations of an example (beams or samples) share the cache of the prompt's keys. In
addition, each continuation has a cache for the keys of its generated tokens. With a window or
chunks, the caches hold only the keys that a later token can see: the last keys of the prompt, and a
ring of generated keys.

Shapes: B batch, K continuations, P prompt keys, R generated keys, S = P + R cached keys, N heads, H
head dim, L layers, C context.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.decay import Decay, log_decay_between
from fire_lm.attention.dense import MASKED, logits_without_decay
from fire_lm.attention.terms import CAUSAL, NO_TERMS, Mask, Terms, Tokens, seen

# The place of a slot that holds no key.
_EMPTY = int(jnp.iinfo(jnp.int32).max)


class PromptKeys(NamedTuple):
    """The cached keys (after any rotation by the encoding) and values of the prompts.

    The axis of keys comes last because a long prompt fills the lanes of a vector unit: decoding
    steps then read the cache 2 to 3 times as fast as with H last, as measured on a CPU and as
    estimated by the TPU compiler.

    Attributes:
      k_BNHP, v_BNHP: The keys and values.
      decay_BNP: The cumulative log forget gates, or None.
    """

    k_BNHP: jax.Array
    v_BNHP: jax.Array
    decay_BNP: Decay | None = None


class OwnKeys(NamedTuple):
    """The cached keys and values of the tokens that each continuation generated.

    Attributes:
      k_BKRNH, v_BKRNH: The keys and values.
      decay_BKRN: The cumulative log forget gates, which continue those of the prompt, or None.
      last_BKN: Those of the last token, or None.
    """

    k_BKRNH: jax.Array
    v_BKRNH: jax.Array
    decay_BKRN: Decay | None = None
    last_BKN: Decay | None = None


class NewKeys(NamedTuple):
    """The key and value of one new token of each continuation, and its decay as in `OwnKeys`."""

    k_BKNH: jax.Array
    v_BKNH: jax.Array
    decay_BKN: Decay | None = None


def cached_keys(
    k_LBPNH: jax.Array,
    v_LBPNH: jax.Array,
    decay_LBPN: Decay | None,
    lengths_B: jax.Array,
    pos_C: jax.Array,
    new_tokens: int,
    continuations: int,
    mask: Mask = CAUSAL,
) -> tuple[PromptKeys, OwnKeys, Tokens]:
    """Return caches for `new_tokens` after prompts, and the positions and places of their S keys.

    Args:
      k_LBPNH, v_LBPNH: The keys and values of the prompts, padded on the right.
      decay_LBPN: The cumulative log forget gates, or None.
      lengths_B: The number of tokens of each prompt.
      pos_C: The positions of a prompt followed by its continuation.
      new_tokens: The number of tokens to generate.
      continuations: K, the number of continuations of each prompt.
      mask: The mask, whose window or chunk bounds the number of cached keys.
    """
    batch, padded = k_LBPNH.shape[1:3]
    # The keys that a token sees besides its own; at least one, because arrays may not be empty.
    others = None if mask.reach is None else max(1, mask.reach - 1)
    prompt = padded if others is None else min(padded, others)
    ring = new_tokens if others is None else min(new_tokens, others)
    index_BP = jnp.broadcast_to(jnp.arange(padded)[None], (batch, padded))
    arrays, last_LBKN = (k_LBPNH, v_LBPNH, decay_LBPN), None
    if decay_LBPN is not None:
        last_LB1N = jax.tree.map(lambda x: _taken(x, (lengths_B - 1)[:, None]), decay_LBPN)
        last_LBKN = jax.tree.map(lambda x: jnp.repeat(x, continuations, axis=2), last_LB1N)
    if prompt < padded:
        index_BP = (lengths_B - prompt)[:, None] + jnp.arange(prompt)[None]
        arrays = jax.tree.map(functools.partial(_taken, index_BP=index_BP), arrays)
    is_key_BP = (index_BP >= 0) & (index_BP < lengths_B[:, None])
    pos_BP = jnp.where(is_key_BP, pos_C[index_BP], pos_C[-1] + 1)
    place_BP = jnp.where(is_key_BP, index_BP, _EMPTY)
    keys = Tokens(
        jnp.concatenate([pos_BP, jnp.full((batch, ring), pos_C[-1] + 1)], axis=1),
        place=jnp.concatenate([place_BP, jnp.full((batch, ring), _EMPTY)], axis=1),
    )

    def empty(x_LBPN: jax.Array) -> jax.Array:
        layers, _, _, *rest = x_LBPN.shape
        return jnp.zeros((layers, batch, continuations, ring, *rest), x_LBPN.dtype)

    own = OwnKeys(*jax.tree.map(empty, arrays))._replace(last_BKN=last_LBKN)
    return PromptKeys(*(jax.tree.map(lambda x: jnp.moveaxis(x, 2, -1), arrays))), own, keys


def _taken(x_LBP: jax.Array, index_BP: jax.Array) -> jax.Array:
    """Return the tokens at `index_BP`; the first token replaces those before it."""
    index = jnp.maximum(index_BP, 0).reshape(1, *index_BP.shape, *[1] * (x_LBP.ndim - 3))
    return jnp.take_along_axis(x_LBP, index, axis=2)


def written(
    own: OwnKeys, keys: Tokens, new: NewKeys, token: Tokens, index: jax.Array
) -> tuple[OwnKeys, Tokens]:
    """Return the caches of all layers, `[L, B, K, ...]`, with the keys of one new token.

    `own` are the caches of the continuations, and `new` the new keys `[L, B, K, ...]`. `keys` and
    `token` are the positions and places of all cached keys and of the new token `[B, 1]`, and
    `index` is the number of tokens generated before it.
    """
    ring = own.k_BKRNH.shape[3]
    slot = index % ring

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new[:, :, :, None], slot, axis=3)

    first = keys.pos.shape[1] - ring
    pos_BS, place_BS = (
        jax.lax.dynamic_update_slice(old, jnp.broadcast_to(new, (len(old), 1)), (0, first + slot))
        for old, new in ((keys.pos, token.pos), (keys.places, token.places))
    )
    caches: tuple[Any, ...] = jax.tree.map(put, tuple(own[:3]), tuple(new))
    own = OwnKeys(*caches)._replace(last_BKN=new.decay_BKN)
    return own, Tokens(pos_BS, place=place_BS)


def attend_cached(
    q_BKNH: jax.Array,
    new: NewKeys,
    prompt: PromptKeys,
    own: OwnKeys,
    query: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
    mask: Mask = CAUSAL,
) -> jax.Array:
    """Return causal softmax attention as in `dense_attention`, `[B, K, N, H]` in q's dtype.

    All continuations of an example are at the same position, so `query` and the scales have one
    token for each example. `keys` are the prompt's keys, followed by the generated keys. Which of
    them the query sees depends on their places only (`terms.seen`).

    The logits of the prompt's keys, of the generated keys and of the token's own key are kept in
    separate arrays: concatenating them would copy them into a layout that suits none of the three.
    """
    first = prompt.k_BNHP.shape[3]
    products = (
        jnp.einsum(equation, q_BKNH, part, preferred_element_type=jnp.float32)
        for equation, part in (
            ("BKNH,BNHP->BNKP", prompt.k_BNHP),
            ("BKNH,BKRNH->BNKR", own.k_BKRNH),
            ("BKNH,BKSNH->BNKS", new.k_BKNH[:, :, None]),
        )
    )
    parts = []
    for products_BNKS, pos_BS, decay_BNKS, place_BS in zip(
        products,
        (keys.pos[:, :first], keys.pos[:, first:], query.pos),
        _decays(prompt, own, new),
        (keys.places[:, :first], keys.places[:, first:], None),
        strict=True,
    ):
        products_BNKS = products_BNKS / math.sqrt(q_BKNH.shape[-1])
        logits_BNKS = logits_without_decay(products_BNKS, query.pos, pos_BS, terms)
        if decay_BNKS is not None:
            logits_BNKS = logits_BNKS + decay_BNKS
        if place_BS is not None:
            seen_B1S = seen(Tokens(query.places), Tokens(place_BS), mask)
            logits_BNKS = jnp.where(seen_B1S[:, None], logits_BNKS, MASKED)
        parts.append(logits_BNKS)
    v_BKNH = new.v_BKNH
    out_BKNH = sum(
        jnp.einsum(
            equation, weights.astype(v_BKNH.dtype), values, preferred_element_type=jnp.float32
        )
        for equation, weights, values in zip(
            ("BNKP,BNHP->BKNH", "BNKR,BKRNH->BKNH", "BNKS,BKSNH->BKNH"),
            _softmax(parts, terms.sink_N),
            (prompt.v_BNHP, own.v_BKRNH, v_BKNH[:, :, None]),
            strict=True,
        )
    )
    return jnp.asarray(out_BKNH).astype(q_BKNH.dtype)


def _decays(prompt: PromptKeys, own: OwnKeys, new: NewKeys) -> tuple[jax.Array | None, ...]:
    """Return the log decay between each key of the three parts and the new token, or Nones."""
    if prompt.decay_BNP is None or own.decay_BKRN is None or new.decay_BKN is None:
        return None, None, None
    prompt_BPN = jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), prompt.decay_BNP)
    query_BK1N = jax.tree.map(lambda x: x[:, :, None], new.decay_BKN)
    own_BNK1R = jax.vmap(log_decay_between, in_axes=1, out_axes=2)(query_BK1N, own.decay_BKRN)
    return log_decay_between(new.decay_BKN, prompt_BPN), own_BNK1R[:, :, :, 0], None


def _softmax(parts: Sequence[jax.Array], sink_N: jax.Array | None) -> list[jax.Array]:
    """Compute the softmax of the parts and a sink, as if they were one array along the last axis.

    The weight of the sink is not returned.
    """
    largest = functools.reduce(jnp.maximum, (jnp.max(x, -1, keepdims=True) for x in parts))
    if sink_N is not None:
        largest = jnp.maximum(largest, sink_N[None, :, None, None])
    weights = [jnp.exp(x - largest) for x in parts]
    total = sum(jnp.sum(x, -1, keepdims=True) for x in weights)
    if sink_N is not None:
        total = total + jnp.exp(sink_N[None, :, None, None] - largest)
    return [x / total for x in weights]
