"""Continuations that do not compete: greedy, or drawn one by one.

Shapes: B examples, K continuations, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.generation.cache import Cache
from fire_lm.generation.methods import Greedy, Sample

# (cache, tokens_BK, index) -> (logits_BKV, cache): reads generated token `index`.
Read = Callable[[Cache, jax.Array, jax.Array], tuple[jax.Array, Cache]]


class Continued(NamedTuple):
    """What was generated; the arrays of `Generated`."""

    tokens_BKT: jax.Array
    logprobs_BKT: jax.Array
    scores_BK: jax.Array
    stopped_BK: jax.Array


class _State(NamedTuple):
    step: jax.Array
    logits_BKV: jax.Array
    cache: Cache
    tokens_BKT: jax.Array
    logprobs_BKT: jax.Array
    stopped_BK: jax.Array


def allowed(logits: jax.Array) -> jax.Array:
    """`[..., V]` without token 0: it is padding, which the model is not trained to predict."""
    return jnp.where(jnp.arange(logits.shape[-1]) == 0, -jnp.inf, logits)  # type: ignore[no-any-return]


def is_stop(tokens: jax.Array, stop_ids: tuple[int, ...]) -> jax.Array:
    """Whether each token ends its continuation."""
    stops = jnp.zeros(tokens.shape, bool)
    for stop in stop_ids:
        stops = stops | (tokens == stop)
    return stops


def sample(
    read: Read,
    method: Greedy | Sample,
    logits_BV: jax.Array,
    cache: Cache,
    keys_B: jax.Array,
    new_tokens: int,
    stop_ids: tuple[int, ...],
) -> Continued:
    """Until all have stopped, `new_tokens` at most.

    The key of a token depends on its example, its continuation and its index alone.
    """
    batch, count = logits_BV.shape[0], method.continuations
    fold = jax.random.fold_in
    keys_BK = jax.vmap(lambda key: jax.vmap(lambda k: fold(key, k))(jnp.arange(count)))(keys_B)

    def choose(state: _State) -> _State:
        keys = jax.vmap(jax.vmap(lambda key: fold(key, state.step)))(keys_BK)
        tokens_BK = method.choose(allowed(state.logits_BKV), keys)
        logprobs_BKV = jax.nn.log_softmax(state.logits_BKV, axis=-1)
        logprobs_BK = jnp.take_along_axis(logprobs_BKV, tokens_BK[..., None], axis=-1)[..., 0]
        tokens_BK = jnp.where(state.stopped_BK, 0, tokens_BK)
        logprobs_BK = jnp.where(state.stopped_BK, 0.0, logprobs_BK)
        return state._replace(
            tokens_BKT=state.tokens_BKT.at[:, :, state.step].set(tokens_BK),
            logprobs_BKT=state.logprobs_BKT.at[:, :, state.step].set(logprobs_BK),
            stopped_BK=state.stopped_BK | is_stop(tokens_BK, stop_ids),
        )

    def one_more(state: _State) -> _State:
        last_BK = state.tokens_BKT[:, :, state.step]
        logits_BKV, cache = read(state.cache, last_BK, state.step)
        return choose(state._replace(step=state.step + 1, logits_BKV=logits_BKV, cache=cache))

    shape = (batch, count, new_tokens)
    logits_BKV = jnp.broadcast_to(logits_BV[:, None], (batch, count, logits_BV.shape[-1]))
    tokens_BKT, stopped_BK = jnp.zeros(shape, jnp.int32), jnp.zeros(shape[:2], bool)
    state = _State(
        *(jnp.int32(0), logits_BKV, cache, tokens_BKT, jnp.zeros(shape, jnp.float32), stopped_BK)
    )
    state = jax.lax.while_loop(
        lambda state: (state.step < new_tokens - 1) & ~jnp.all(state.stopped_BK),
        one_more,
        choose(state),
    )
    scores_BK = jnp.sum(state.logprobs_BKT, axis=-1)
    return Continued(state.tokens_BKT, state.logprobs_BKT, scores_BK, state.stopped_BK)
