"""Generation of continuations, with prompts and results as arrays on the host.

Shapes: B examples, K continuations, P prompt, T new tokens, C context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fire_lm.errors import RunFailed, UserError
from fire_lm.generation.methods import Beam, Greedy, Method
from fire_lm.generation.own_encodings import check_own_encodings
from fire_lm.generation.programs import (
    Call,
    Inputs,
    cache_bytes,
    call_for,
    compiled_context,
    continue_in_chunks,
    continue_prompts,
    laid_out,
    start,
)
from fire_lm.hardware.memory import check_fits, check_program, free_memory
from fire_lm.models import Decoder, check_token_ids, padded_positions, reason_of_nan

_LONGEST = 2**24


class Generated(NamedTuple):
    """The continuations of prompts, on the host.

    Attributes:
      tokens_BKT: The generated tokens, int32, including the stop token; 0 after the end.
      lengths_BK: The number of generated tokens of each continuation, int32.
      logprobs_BKT: The log-probability of each token under the model, float32, before temperature
        and filters.
      scores_BK: The sum of the log-probabilities, which beam search divides by the length penalty.
      stopped_BK: Whether a stop token ended the continuation, rather than the limit of new tokens.
      context_length: The context length of the call, which affects encodings that are defined by
        the length of the input.
    """

    tokens_BKT: np.ndarray
    lengths_BK: np.ndarray
    logprobs_BKT: np.ndarray
    scores_BK: np.ndarray
    stopped_BK: np.ndarray
    context_length: int


def generate(
    model: Decoder,
    params: Any,
    prompts_BP: Any,
    lengths_B: Any,
    *,
    new_tokens: int,
    method: Method = Greedy(),  # noqa: B008 (frozen)
    stop_ids: tuple[int, ...] = (),
    keys_B: jax.Array | None = None,
    context_length: int | None = None,
    mesh: Mesh | None = None,
    on_tokens: Callable[[np.ndarray], None] | None = None,
) -> Generated:
    """Continue each prompt by at most `new_tokens` tokens.

    For a fixed `context_length`, a continuation depends neither on the other prompts nor on
    padding. By default, the context length is the length of the longest prompt plus `new_tokens`.
    It affects encodings that are defined by the length of the input, and positions that are drawn
    for that length.

    Args:
      prompts_BP: The prompts, int32, padded on the right; each begins with 0, as training rows do.
      lengths_B: The number of tokens of each prompt, int32.
      new_tokens: The maximum number of tokens to generate for each continuation.
      stop_ids: The tokens that end a continuation.
      keys_B: A random key for each example; by default, the key is derived from seed 0 and the
        index of the example.
      context_length: The number of tokens in a prompt and its continuation, the same for all
        prompts.
      mesh: The devices over which prompts (data, fsdp) and heads (tensor) are split. `params` must
        have the layout of `decoding_layout`, and all processes of a job must pass the same prompts.
      on_tokens: Called with the tokens generated so far, `[B, K, T]`, after the first token and
        then every 8 tokens. Beam search does not call it, because the best hypothesis can change
        until the end.

    Raises:
      UserError: An argument is invalid, the model has too few positions, or decoding cannot follow
        an encoding that is not part of fire_lm.
      RunFailed: The model returns NaN.
    """
    prompts, lengths = np.asarray(prompts_BP), np.asarray(lengths_B, np.int32)
    context = check_prompts(model, prompts, lengths, new_tokens, context_length)
    prompts = prompts.astype(np.int32)
    check_own_encodings(model, params, mesh)
    if keys_B is None:
        fold = functools.partial(jax.random.fold_in, jax.random.key(0))
        keys_B = jax.vmap(fold)(jnp.arange(len(lengths)))
    padded = prompts.shape[1] + new_tokens
    pos_C = padded_positions(model, context, padded)
    static = compiled_context(model, context, padded)
    call = call_for(model, method, new_tokens, stop_ids, static, mesh)
    rows = laid_out((prompts, lengths, np.asarray(jax.random.key_data(keys_B))), mesh)
    inputs = Inputs(rows[0], rows[1], rows[2], pos_C)
    count = len(lengths)
    if on_tokens is None or isinstance(method, Beam):
        _check_memory(continue_prompts, call, params, inputs, mesh)
        continued = continue_prompts(call, params, inputs)
    else:
        _check_memory(start, call, params, inputs, mesh)
        continued = continue_in_chunks(
            call, params, inputs, lambda x: on_tokens(np.asarray(x)[:count])
        )
    tokens, logprobs, scores, stopped = (np.asarray(x)[:count] for x in continued)
    if np.isnan(logprobs).any():
        raise RunFailed(
            f"the model returns NaN: {reason_of_nan(model, params, prompts.shape[1])}",
            everywhere=True,  # all processes have the same arrays
        )
    return Generated(tokens, (tokens != 0).sum(-1), logprobs, scores, stopped, context)


def _check_memory(
    program: jax.stages.Wrapped, call: Call, params: Any, inputs: Inputs, mesh: Mesh | None
) -> None:
    """Raise TooLarge if a program needs more memory than there is.

    What decoding remembers is checked first, because the compilation takes longer.
    """
    batch, prompt = inputs.prompts_BP.shape
    key = (program, call, batch, prompt, mesh)
    if key in _fitting:
        return
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    each = f"{prompt} + {call.new_tokens} tokens"
    if call.method.continuations > 1:
        each += f", {call.method.continuations} continuations each"
    what = f"generation for {batch} prompts of {each}"
    remedy = "shorten the prompts, or generate fewer tokens"
    if batch > 1:
        remedy += ", or fewer prompts at a time (--batch_size or evaluate.batch_size)"
    if jax.process_count() == 1:
        cached = cache_bytes(call, params, inputs, mesh)
        check_fits(cached, free_memory(devices), what, remedy, at_least=True)
    check_program(program.lower(call, params, inputs).compile(), devices, what, remedy)
    _fitting.add(key)


# The programs that fit in memory, with the shapes of their inputs.
_fitting: set[tuple[Any, ...]] = set()


def check_prompts(
    model: Decoder,
    prompts_BP: np.ndarray,
    lengths_B: np.ndarray,
    new_tokens: int,
    context_length: int | None,
) -> int:
    """Return the context length of the call, or raise UserError if an argument is invalid."""
    if new_tokens < 1:
        raise UserError(f"new_tokens is {new_tokens}: it must be 1 or more")
    if prompts_BP.ndim != 2 or lengths_B.shape != prompts_BP.shape[:1] or not lengths_B.size:
        raise UserError(
            f"the shapes of prompts_BP and lengths_B are {prompts_BP.shape} and {lengths_B.shape}: "
            "they must be [B, P] and [B], with at least one prompt"
        )
    if lengths_B.min() < 1 or lengths_B.max() > prompts_BP.shape[1]:
        raise UserError(
            f"lengths_B must range from 1 (only token 0) to {prompts_BP.shape[1]}, but ranges from "
            f"{lengths_B.min()} to {lengths_B.max()}"
        )
    check_token_ids(prompts_BP, model.vocab_size, "a prompt")
    needed = int(lengths_B.max()) + new_tokens
    context = needed if context_length is None else context_length
    if context < needed:
        raise UserError(
            f"context_length is {context}, but the longest prompt and new tokens need {needed} "
            "tokens\nraise context_length, or lower new_tokens"
        )
    check_context(model, needed, context)
    return context


def check_context(model: Decoder, needed: int, context_length: int) -> None:
    """Raise UserError if the model cannot read the first `needed` of `context_length` tokens."""
    if context_length > _LONGEST:
        raise UserError(
            f"context_length is {context_length:,}, but positions are computed in float32, which "
            f"is exact up to {_LONGEST:,}: use a shorter context"
        )
    last = int(model.resampling.evaluation_positions(context_length)[0, needed - 1])
    for encoding in model.encodings:
        encoding.check_length(last + 1, context_length)
