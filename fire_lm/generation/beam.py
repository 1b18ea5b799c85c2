"""Beam search (Wu et al., 2016) with enough candidates in each step to keep K live hypotheses.

Shapes: B examples, K beams, C candidates, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.generation.cache import Cache
from fire_lm.generation.methods import Beam
from fire_lm.generation.sampling import TOKENS, Continued, Read, allowed, is_stop


class _Beams(NamedTuple):
    """K hypotheses for each example; an empty entry has the score -inf."""

    score_BK: jax.Array
    tokens_BKT: jax.Array
    logprobs_BKT: jax.Array


class _State(NamedTuple):
    step: jax.Array
    logits_BKV: jax.Array
    cache: Cache
    live: _Beams
    finished: _Beams


def _best(beams: _Beams, count: int) -> tuple[_Beams, jax.Array]:
    """Return the `count` beams with the highest scores, best first, and their former indices."""
    _, place_BK = jax.lax.top_k(beams.score_BK, count)
    return _taken(beams, place_BK), place_BK


def _taken(beams: _Beams, place_BK: jax.Array) -> _Beams:
    return _Beams(
        jnp.take_along_axis(beams.score_BK, place_BK, axis=1),
        *(jnp.take_along_axis(x, place_BK[..., None], axis=1) for x in beams[1:]),
    )


def _candidates(
    live: _Beams, logits_BKV: jax.Array, index: jax.Array, stops: int
) -> tuple[_Beams, jax.Array]:
    """Return the likeliest one-token extensions of the live beams, and the beam that each extends.

    At most `stops` extensions of a beam can end it. Therefore, (1 + stops) * K candidates are
    chosen, of which at least K remain live.
    """
    batch, count, size = logits_BKV.shape
    logprobs_BKV = jax.nn.log_softmax(logits_BKV, axis=-1)
    score_BKV = live.score_BK[..., None] + allowed(logprobs_BKV)
    most = min((1 + stops) * count, count * size)
    score_BC, place_BC = jax.lax.top_k(score_BKV.reshape(batch, -1), most)
    parent_BC, token_BC = place_BC // size, (place_BC % size).astype(jnp.int32)
    logprob_BC = jnp.take_along_axis(logprobs_BKV.reshape(batch, -1), place_BC, axis=1)
    beams = _taken(live, parent_BC)
    tokens_BCT = beams.tokens_BKT.at[:, :, index].set(token_BC)
    logprobs_BCT = beams.logprobs_BKT.at[:, :, index].set(logprob_BC)
    return _Beams(score_BC, tokens_BCT, logprobs_BCT), parent_BC


def beam_search(
    read: Read,
    reorder: Callable[[Cache, jax.Array], Cache],
    method: Beam,
    logits_BV: jax.Array,
    cache: Cache,
    new_tokens: int,
    stop_ids: tuple[int, ...],
) -> Continued:
    """Return the K best finished hypotheses, best first.

    If no hypothesis of an example has finished, its live hypotheses are returned instead. The
    search ends after `new_tokens` tokens, or when no live beam can score higher than the worst of K
    finished hypotheses. A missing hypothesis has the score -inf and no tokens.
    """
    batch, count = logits_BV.shape[0], method.beams

    def extend(state: _State) -> _State:
        found, parent_BC = _candidates(
            state.live, state.logits_BKV, state.step, max(1, len(stop_ids))
        )
        ended_BC = is_stop(found.tokens_BKT[:, :, state.step], stop_ids)
        open_BC = jnp.where(ended_BC, -jnp.inf, found.score_BK)
        live, place_BK = _best(found._replace(score_BK=open_BC), count)
        final_BC = found.score_BK / method.penalty(state.step + 1)
        ended = found._replace(score_BK=jnp.where(ended_BC, final_BC, -jnp.inf))
        pool = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), state.finished, ended)
        parent_BK = jnp.take_along_axis(parent_BC, place_BK, axis=1)
        return state._replace(
            cache=reorder(state.cache, parent_BK), live=live, finished=_best(pool, count)[0]
        )

    def can_improve(state: _State) -> jax.Array:
        attainable_B = jnp.max(state.live.score_BK, axis=1) / method.penalty(new_tokens)
        open_B = attainable_B > jnp.min(state.finished.score_BK, axis=1)
        return (state.step < new_tokens - 1) & jnp.any(open_B)

    def one_more(state: _State) -> _State:
        last_BK = state.live.tokens_BKT[:, :, state.step]
        logits_BKV, cache = read(state.cache, last_BK, state.step)
        return extend(state._replace(step=state.step + 1, logits_BKV=logits_BKV, cache=cache))

    shape = (batch, count, new_tokens)
    nothing = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    no_score_BK = jnp.full(shape[:2], -jnp.inf)
    first = _Beams(no_score_BK.at[:, 0].set(0.0), *nothing)  # other beams would be duplicates
    logits_BKV = jnp.broadcast_to(logits_BV[:, None], (*shape[:2], logits_BV.shape[-1]))
    state = _State(jnp.int32(0), logits_BKV, cache, first, _Beams(no_score_BK, *nothing))
    with jax.named_scope(TOKENS):
        state = jax.lax.while_loop(can_improve, one_more, extend(state))
    live = state.live._replace(score_BK=state.live.score_BK / method.penalty(new_tokens))
    any_B = jnp.any(~jnp.isneginf(state.finished.score_BK), axis=1)
    result = _Beams(
        *(
            jnp.where(any_B.reshape(-1, *[1] * (ended.ndim - 1)), ended, unfinished)
            for ended, unfinished in zip(state.finished, live, strict=True)
        )
    )
    there_BK = ~jnp.isneginf(result.score_BK)  # unlike -inf, a score of NaN must reach the caller
    tokens_BKT = jnp.where(there_BK[..., None], result.tokens_BKT, 0)
    logprobs_BKT = jnp.where(there_BK[..., None], result.logprobs_BKT, 0.0)
    return Continued(tokens_BKT, logprobs_BKT, result.score_BK, any_B[:, None] & there_BK)
