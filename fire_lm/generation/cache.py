"""Caches of keys and values for decoding.

The cache of the prompt is written once and shared by the K continuations of an example; the cache
of generated tokens is small. Layers only read the caches. The keys and values of a new token are
written once for all layers, after the last layer, because a cache that is carried through a loop
over layers would be copied.

Shapes: B examples, K continuations, P prompt, T new tokens, C context, N heads, H head dim, L
layers (of one of several alternating encodings), V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.cached import CachedKeys
from fire_lm.models import Decoder
from fire_lm.models.decoder_layer import Past, Reading


class Cache(NamedTuple):
    """The state of decoding after the tokens read so far.

    Attributes:
      turns: For each of the alternating encodings, the keys and values of its layers `[L, ...]`.
      pos_BS: The positions of the keys, first of the prompt and then of the generated tokens.
        Padding has a position beyond all tokens.
    """

    turns: tuple[Past, ...]
    pos_BS: jax.Array


def prefill(
    model: Decoder,
    params: Any,
    prompts_BP: jax.Array,
    lengths_B: jax.Array,
    pos_C: jax.Array,
    new_tokens: int,
    continuations: int,
    context_length: int,
) -> tuple[jax.Array, Cache]:
    """Process the prompts with the forward pass of training, and fill the cache.

    `pos_C` contains the positions of a prompt followed by its continuation, int32 or, if resampled,
    float32. They may extend beyond the end of the context; see `padded_positions`.

    Returns:
      The logits `[B, V]` of the first new token, and the cache.
    """
    batch, prompt = prompts_BP.shape
    out: Any = model.apply(
        *({"params": params}, prompts_BP, pos_C[None, :prompt], lengths_B, context_length),
        method="prefill",
    )
    logits_BV, kept = out
    turns = []
    for k_LBPNH, v_LBPNH, position in kept:
        layers, _, _, *heads = k_LBPNH.shape
        empty = jnp.zeros((layers, batch, continuations, new_tokens, *heads), k_LBPNH.dtype)
        k_LBNHP, v_LBNHP = (jnp.moveaxis(x, 2, -1) for x in (k_LBPNH, v_LBPNH))
        turns.append(Past(CachedKeys(k_LBNHP, v_LBNHP, empty, empty), position))
    is_token_BP = jnp.arange(prompt)[None] < lengths_B[:, None]
    prompt_pos_BP = jnp.where(is_token_BP, pos_C[None, :prompt], pos_C[-1] + 1)
    generated_BT = lengths_B[:, None] + jnp.arange(new_tokens)[None]
    pos_BS = jnp.concatenate([prompt_pos_BP, pos_C[generated_BT]], axis=1)
    return logits_BV, Cache(tuple(turns), pos_BS)


def read_token(
    model: Decoder,
    params: Any,
    cache: Cache,
    tokens_BK: jax.Array,
    lengths_B: jax.Array,
    pos_C: jax.Array,
    index: jax.Array,
    context_length: int,
) -> tuple[jax.Array, Cache]:
    """Process the generated token at `index`, counted from 0, of each continuation.

    Returns:
      The logits `[B, K, V]` of the next token, and the cache with the keys of this token.
    """
    place_B = lengths_B + index
    pos_BK, seen_BK = (
        jnp.broadcast_to(x_B[:, None], tokens_BK.shape) for x_B in (pos_C[place_B], place_B + 1)
    )
    reading = Reading(pos_BK, None, seen_BK, cache.pos_BS)
    out: Any = model.apply(
        *({"params": params}, tokens_BK, reading, cache.turns, context_length), method="step"
    )
    logits_BKV, kept = out
    turns = []
    for past, new in zip(cache.turns, kept, strict=True):
        start = (0, 0, 0, index, 0, 0)
        k, v = (
            jax.lax.dynamic_update_slice(old, one[:, :, :, None], start)
            for old, one in ((past.keys.k_BKTNH, new.k_BSNH), (past.keys.v_BKTNH, new.v_BSNH))
        )
        turns.append(past._replace(keys=past.keys._replace(k_BKTNH=k, v_BKTNH=v)))
    return logits_BKV, cache._replace(turns=tuple(turns))


def of_parents(cache: Cache, parent_BK: jax.Array) -> Cache:
    """Reorder the cache so that each continuation continues its parent in the same example."""

    def taken(x_LBKTNH: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x_LBKTNH, parent_BK[None, :, :, None, None, None], axis=2)

    turns = tuple(
        past._replace(
            keys=past.keys._replace(
                k_BKTNH=taken(past.keys.k_BKTNH), v_BKTNH=taken(past.keys.v_BKTNH)
            )
        )
        for past in cache.turns
    )
    return cache._replace(turns=turns)
