"""Greedy decoding and sampling, in which continuations do not compete with each other.

Shapes: B examples, K continuations, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.generation.cache import Cache
from fire_lm.generation.methods import Greedy, Sample

# A function (cache, tokens_BK, index) -> (logits_BKV, cache) that processes the generated tokens
# at `index`.
Read = Callable[[Cache, jax.Array, jax.Array], tuple[jax.Array, Cache]]


# The name of the loop over new tokens in compiled programs, by which preflight finds the loop.
TOKENS = "new_tokens"


class Continued(NamedTuple):
    """The generated tokens and their scores; `Generated` describes these arrays."""

    tokens_BKT: jax.Array
    logprobs_BKT: jax.Array
    scores_BK: jax.Array
    stopped_BK: jax.Array


class Drawing(NamedTuple):
    """The state of greedy decoding or sampling.

    The tokens up to index `step` have been chosen, but the model has not yet processed the token at
    `step`.
    """

    step: jax.Array
    logits_BKV: jax.Array
    cache: Cache
    keys_BK: jax.Array
    tokens_BKT: jax.Array
    logprobs_BKT: jax.Array
    stopped_BK: jax.Array


def allowed(logits: jax.Array) -> jax.Array:
    """Mask the logit of token 0, the padding, which the model is not trained to predict."""
    return jnp.where(jnp.arange(logits.shape[-1]) == 0, -jnp.inf, logits)  # type: ignore[no-any-return]


def is_stop(tokens: jax.Array, stop_ids: tuple[int, ...]) -> jax.Array:
    """Return whether each token ends its continuation."""
    stops = jnp.zeros(tokens.shape, bool)
    for stop in stop_ids:
        stops = stops | (tokens == stop)
    return stops


def first_tokens(
    method: Greedy | Sample,
    logits_BV: jax.Array,
    cache: Cache,
    keys_B: jax.Array,
    new_tokens: int,
    stop_ids: tuple[int, ...],
) -> Drawing:
    """Choose the first token of every continuation from the logits after the prompt.

    The key of a token depends only on its example, its continuation and its index.
    """
    batch, count = logits_BV.shape[0], method.continuations
    fold = jax.random.fold_in
    keys_BK = jax.vmap(lambda key: jax.vmap(lambda k: fold(key, k))(jnp.arange(count)))(keys_B)
    shape = (batch, count, new_tokens)
    logits_BKV = jnp.broadcast_to(logits_BV[:, None], (batch, count, logits_BV.shape[-1]))
    empty = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.zeros(shape[:2], bool))
    start = Drawing(jnp.int32(0), logits_BKV, cache, keys_BK, *empty)
    return _chosen(method, start, stop_ids)


def more_tokens(
    read: Read,
    method: Greedy | Sample,
    state: Drawing,
    until: jax.Array | int,
    stop_ids: tuple[int, ...],
) -> Drawing:
    """Choose tokens until each continuation has `until` tokens or has stopped."""

    def one_more(state: Drawing) -> Drawing:
        last_BK = state.tokens_BKT[:, :, state.step]
        logits_BKV, cache = read(state.cache, last_BK, state.step)
        state = state._replace(step=state.step + 1, logits_BKV=logits_BKV, cache=cache)
        return _chosen(method, state, stop_ids)

    with jax.named_scope(TOKENS):
        return jax.lax.while_loop(
            lambda state: (state.step < until - 1) & ~jnp.all(state.stopped_BK), one_more, state
        )


def _chosen(method: Greedy | Sample, state: Drawing, stop_ids: tuple[int, ...]) -> Drawing:
    """Choose the token at index `step` of each continuation, and return the new state."""
    fold = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, state.step)))
    tokens_BK = method.choose(allowed(state.logits_BKV), fold(state.keys_BK))
    logprobs_BKV = jax.nn.log_softmax(state.logits_BKV, axis=-1)
    logprobs_BK = jnp.take_along_axis(logprobs_BKV, tokens_BK[..., None], axis=-1)[..., 0]
    tokens_BK = jnp.where(state.stopped_BK, 0, tokens_BK)
    logprobs_BK = jnp.where(state.stopped_BK, 0.0, logprobs_BK)
    return state._replace(
        tokens_BKT=state.tokens_BKT.at[:, :, state.step].set(tokens_BK),
        logprobs_BKT=state.logprobs_BKT.at[:, :, state.step].set(logprobs_BK),
        stopped_BK=state.stopped_BK | is_stop(tokens_BK, stop_ids),
    )


def drawn(state: Drawing) -> Continued:
    """Return the tokens chosen so far, with log-probabilities and scores."""
    scores_BK = jnp.sum(state.logprobs_BKT, axis=-1)
    return Continued(state.tokens_BKT, state.logprobs_BKT, scores_BK, state.stopped_BK)
