"""The state of decoding: what the layers of a model remember of the tokens read so far.

Only the mixer of a turn knows what its state contains, such as keys and values. Layers only read
the state. What a new token adds is written once for all layers, after the last layer, because a
state that is carried through a loop over layers would be copied.

Shapes: B examples, K continuations, P prompt, C context, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.models import Decoder
from fire_lm.models.decoder_layer import Past
from fire_lm.models.mixers import Prompts, Reading

# For each turn, what its layers remember, `[L, ...]`.
Cache = tuple[Past, ...]


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
    """Process the prompts with the forward pass of training, and start the cache.

    `pos_C` contains the positions of a prompt followed by its continuation, int32 or, if resampled,
    float32. They may extend beyond the end of the context; see `padded_positions`.

    Returns:
      The logits `[B, V]` of the first new token, and the cache.
    """
    prompt = prompts_BP.shape[1]
    out: Any = model.apply(
        {"params": params},
        prompts_BP,
        pos_C[None, :prompt],
        lengths_B,
        context_length,
        method="prefill",
    )
    logits_BV, kept = out
    prompts = Prompts(lengths_B, pos_C, new_tokens, continuations)
    return logits_BV, tuple(
        Past(turn.mixer.start(of_turn.mixed, prompts, turn.mask), of_turn.position)
        for turn, of_turn in zip(model.turns, kept, strict=True)
    )


def read_token(
    model: Decoder,
    params: Any,
    cache: Cache,
    tokens_BK: jax.Array,
    index: jax.Array,
    lengths_B: jax.Array,
    pos_C: jax.Array,
    context_length: int,
) -> tuple[jax.Array, Cache]:
    """Process the generated token at `index`, counted from 0, of each continuation.

    Returns:
      The logits `[B, K, V]` of the next token, and the cache with this token.
    """
    place_B = lengths_B + index
    pos_BK, seen_BK = (
        jnp.broadcast_to(x_B[:, None], tokens_BK.shape) for x_B in (pos_C[place_B], place_B + 1)
    )
    reading = Reading(pos_BK, None, seen_BK, generated=index)
    out: Any = model.apply(
        {"params": params}, tokens_BK, reading, cache, context_length, method="step"
    )
    logits_BKV, new = out
    return logits_BKV, tuple(
        past._replace(state=turn.mixer.append(past.state, of_turn.mixed, reading))
        for turn, past, of_turn in zip(model.turns, cache, new, strict=True)
    )


def reorder(model: Decoder, cache: Cache, parent_BK: jax.Array) -> Cache:
    """Reorder the cache so that each continuation continues its parent in the same example."""
    return tuple(
        past._replace(state=turn.mixer.reorder(past.state, parent_BK))
        for turn, past in zip(model.turns, cache, strict=True)
    )
