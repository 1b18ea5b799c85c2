"""Prompts to continuations, in one compiled program.

Shapes: B examples, K continuations, P prompt, T new tokens, C context, V vocabulary, U words of a
random key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fire_lm.errors import RunFailed, UserError
from fire_lm.generation.beam import beam_search
from fire_lm.generation.cache import Cache, prefill, read_token
from fire_lm.generation.methods import Beam, Greedy, Method
from fire_lm.generation.sampling import Continued, Drawing, Read, drawn, first_tokens, more_tokens
from fire_lm.models import Decoder
from fire_lm.models.layouts import replicate
from fire_lm.sharding import ACTIVATIONS, BATCH

# Tokens between two calls of `on_tokens`.
_CHUNK = 8


class Generated(NamedTuple):
    """Continuations of prompts, on the host.

    Attributes:
      tokens_BKT: int32, the stop token included; 0 after the end.
      lengths_BK: int32, tokens generated.
      logprobs_BKT: float32, of each token under the model, before temperature and filters.
      scores_BK: their sum; of a beam divided by the length penalty.
      stopped_BK: whether a stop token ended it, rather than the number of new tokens.
      context_length: of the call, for encodings that are defined by the length of the input.
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
    """Continues each prompt by `new_tokens` tokens at most.

    A continuation does not depend on the other prompts or on padding, given `context_length`: by
    default it is the longest prompt and `new_tokens`, which matters to encodings that are defined
    by the length of the input, and to positions that are drawn for it.

    Args:
      prompts_BP: int32, padded to the right; each begins with 0, as rows of training do.
      lengths_B: int32, tokens of each prompt.
      method: `Greedy`, `Sample` or `Beam`.
      stop_ids: tokens that end a continuation.
      keys_B: a random key for each example; by default of seed 0 and the example's number.
      context_length: tokens of the whole input, one for the call.
      mesh: devices that share the prompts (data, fsdp) and heads (tensor), where `params` lie as
        `decoding_layout` has them. All processes of a job call together with the same prompts.
      on_tokens: called with the tokens `[B, K, T]` so far, every 8 tokens; never by beam search,
        whose best hypothesis changes until the end.

    Raises:
      UserError: a prompt is empty or too long, or the model knows too few positions.
      RunFailed: the model gives NaN.
    """
    prompts, lengths = np.asarray(prompts_BP, np.int32), np.asarray(lengths_B, np.int32)
    context = check_prompts(model, prompts, lengths, new_tokens, context_length)
    if keys_B is None:
        fold = functools.partial(jax.random.fold_in, jax.random.key(0))
        keys_B = jax.vmap(fold)(jnp.arange(len(lengths)))
    padded = prompts.shape[1] + new_tokens
    pos_C = np.asarray(model.resampling.evaluation_positions(context)[0][:padded])
    pos_C = np.pad(pos_C, (0, padded - pos_C.size), mode="edge")
    # Others are compiled once for all lengths of a bucket.
    exact = any(encoding.uses_context_length for encoding in model.encodings)
    if mesh is not None:
        model = model.clone(activation_sharding=NamedSharding(mesh, ACTIVATIONS))
    call = Call(
        model, method, new_tokens, tuple(sorted(set(stop_ids))), context if exact else padded
    )
    rows = _laid_out((prompts, lengths, np.asarray(jax.random.key_data(keys_B))), mesh)
    inputs = Inputs(rows[0], rows[1], rows[2], pos_C)
    count = len(lengths)
    if on_tokens is None or isinstance(method, Beam):
        found = continue_prompts(call, params, inputs)
    else:
        found = _in_chunks(call, params, inputs, lambda x: on_tokens(np.asarray(x)[:count]))
    tokens, logprobs, scores, stopped = (np.asarray(x)[:count] for x in found)
    if np.isnan(logprobs).any():
        raise RunFailed("the model gives NaN: the checkpoint is of a run that diverged")
    return Generated(tokens, (tokens != 0).sum(-1), logprobs, scores, stopped, context)


class Call(NamedTuple):
    """What a program is compiled for."""

    model: Decoder
    method: Method
    new_tokens: int
    stop_ids: tuple[int, ...]
    context_length: int

    def reader(self, params: Any, inputs: Inputs) -> Read:
        def read(cache: Cache, tokens_BK: jax.Array, index: jax.Array) -> tuple[jax.Array, Cache]:
            return read_token(
                *(self.model, params, cache, tokens_BK, inputs.lengths_B, inputs.pos_C, index),
                self.context_length,
            )

        return read

    def prefill(self, params: Any, inputs: Inputs) -> tuple[jax.Array, Cache]:
        return prefill(
            *(self.model, params, inputs.prompts_BP, inputs.lengths_B, inputs.pos_C),
            *(self.new_tokens, self.method.continuations, self.context_length),
        )


class Inputs(NamedTuple):
    """What a program reads beside the parameters.

    Attributes:
      prompts_BP: int32, padded to the right.
      lengths_B: int32, tokens of each prompt.
      keys_BU: uint32, the data of a random key for each.
      pos_C: positions of a text of prompt and answer, int32 or (resampled) float32.
    """

    prompts_BP: Any
    lengths_B: Any
    keys_BU: Any
    pos_C: Any


def _laid_out(rows: tuple[np.ndarray, ...], mesh: Mesh | None) -> tuple[Any, ...]:
    """Arrays `[B, ...]` on the devices; the last row is repeated until they share them evenly."""
    if mesh is None:
        return rows
    missing = -len(rows[0]) % (mesh.shape["data"] * mesh.shape["fsdp"])
    layout = NamedSharding(mesh, BATCH)
    whole = (np.concatenate([x, *[x[-1:]] * missing]) for x in rows)
    return tuple(jax.make_array_from_callback(x.shape, layout, x.__getitem__) for x in whole)


def check_prompts(
    model: Decoder,
    prompts_BP: np.ndarray,
    lengths_B: np.ndarray,
    new_tokens: int,
    context_length: int | None,
) -> int:
    """The context length of the call; raises UserError where something does not fit."""
    if new_tokens < 1:
        raise UserError(f"new_tokens is {new_tokens}: it must be 1 or more")
    if prompts_BP.ndim != 2 or lengths_B.shape != prompts_BP.shape[:1] or not lengths_B.size:
        raise UserError(
            f"prompts have the shape {prompts_BP.shape}, lengths {lengths_B.shape}: they must be "
            "[B, P] and [B], for one prompt or more"
        )
    if lengths_B.min() < 1 or lengths_B.max() > prompts_BP.shape[1]:
        raise UserError(
            f"lengths of prompts are from 1 (the first token, 0) to {prompts_BP.shape[1]}, got "
            f"{lengths_B.min()} to {lengths_B.max()}"
        )
    needed = int(lengths_B.max()) + new_tokens
    context = needed if context_length is None else context_length
    if context < needed:
        raise UserError(f"context_length is {context}: prompt and new tokens have {needed}")
    last = int(model.resampling.evaluation_positions(context)[0, needed - 1])
    for encoding in model.encodings:
        encoding.check_length(last + 1, context)
    return context


@functools.partial(jax.jit, static_argnums=0)
def continue_prompts(call: Call, params: Any, inputs: Inputs) -> Continued:
    """`generate` on the devices."""
    read = call.reader(params, inputs)
    if isinstance(call.method, Beam):
        logits_BV, cache = call.prefill(params, inputs)
        found = beam_search(read, call.method, logits_BV, cache, call.new_tokens, call.stop_ids)
        return _on_all(call, found)
    state = _start(call, params, inputs)
    return _on_all(
        call, drawn(more_tokens(read, call.method, state, call.new_tokens, call.stop_ids))
    )


def _in_chunks(
    call: Call, params: Any, inputs: Inputs, on_tokens: Callable[[jax.Array], None]
) -> Continued:
    """`continue_prompts` by sampling: a program for the first token, and one for some more."""
    state = _start(call, params, inputs)
    found = _on_all_devices(call, drawn(state))
    on_tokens(found.tokens_BKT)
    for until in range(1 + _CHUNK, call.new_tokens + _CHUNK, _CHUNK):
        if np.asarray(found.stopped_BK).all():
            break
        state = _go_on(call, params, inputs, state, min(until, call.new_tokens))
        found = _on_all_devices(call, drawn(state))
        on_tokens(found.tokens_BKT)
    return found


@functools.partial(jax.jit, static_argnums=0)
def _start(call: Call, params: Any, inputs: Inputs) -> Drawing:
    assert not isinstance(call.method, Beam)
    logits_BV, cache = call.prefill(params, inputs)
    keys_B = jax.random.wrap_key_data(inputs.keys_BU)
    return first_tokens(call.method, logits_BV, cache, keys_B, call.new_tokens, call.stop_ids)


@functools.partial(jax.jit, static_argnums=0, donate_argnames="state")
def _go_on(call: Call, params: Any, inputs: Inputs, state: Drawing, until: int) -> Drawing:
    assert not isinstance(call.method, Beam)
    read = call.reader(params, inputs)
    return more_tokens(read, call.method, state, until, call.stop_ids)


def _on_all(call: Call, found: Continued) -> Continued:
    """Results on every device, so that each process of a job has all of them."""
    layout = call.model.activation_sharding
    return jax.tree.map(lambda x: replicate(x, layout), found)


_on_all_devices = jax.jit(_on_all, static_argnums=0)
