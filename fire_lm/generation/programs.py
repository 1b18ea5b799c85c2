"""Compiled programs for generation: prefill, then a loop over all new tokens or over a chunk.

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

from fire_lm.errors import UserError
from fire_lm.generation.beam import beam_search
from fire_lm.generation.cache import Cache, prefill, read_token, reorder
from fire_lm.generation.methods import Beam, Method
from fire_lm.generation.sampling import Continued, Drawing, Read, drawn, first_tokens, more_tokens
from fire_lm.models import Decoder
from fire_lm.models.layouts import replicate
from fire_lm.sharding import BATCH, of_activations, slices_of_rows

# The number of tokens between two calls of `on_tokens`.
_CHUNK = 8


class Call(NamedTuple):
    """The static arguments of a program."""

    model: Decoder
    method: Method
    new_tokens: int
    stop_ids: tuple[int, ...]
    context_length: int

    def reader(self, params: Any, inputs: Inputs) -> Read:
        return functools.partial(
            read_token,
            *(self.model, params),
            lengths_B=inputs.lengths_B,
            pos_C=inputs.pos_C,
            context_length=self.context_length,
        )

    def prefill(self, params: Any, inputs: Inputs) -> tuple[jax.Array, Cache]:
        return prefill(
            self.model,
            params,
            inputs.prompts_BP,
            inputs.lengths_B,
            inputs.pos_C,
            self.new_tokens,
            self.method.continuations,
            self.context_length,
        )


class Inputs(NamedTuple):
    """The inputs of a program other than the parameters.

    Attributes:
      prompts_BP: The prompts, int32, padded on the right.
      lengths_B: The number of tokens of each prompt, int32.
      keys_BU: The data of a random key for each prompt, uint32.
      pos_C: The positions of a prompt followed by its continuation, int32 or, if resampled,
        float32.
    """

    prompts_BP: Any
    lengths_B: Any
    keys_BU: Any
    pos_C: Any


def call_for(
    model: Decoder,
    method: Method,
    new_tokens: int,
    stop_ids: tuple[int, ...],
    context_length: int,
    mesh: Mesh | None,
) -> Call:
    """Return the static arguments of a program for decoding.

    The model in them does not use remat, and loops over its layers to reduce the compile time.

    Raises:
      UserError: The mesh splits rows, whose tokens decoding appends one by one.
    """
    if mesh is not None and (slices := slices_of_rows(mesh)) > 1:
        raise UserError(
            f"MeshShape.sequence is {slices}: it must be 1 for generation, which keeps each text "
            "on one device"
        )
    layout = None if mesh is None else of_activations(mesh)
    model = model.clone(scan_layers=True, remat="none", activation_sharding=layout)
    return Call(model, method, new_tokens, tuple(sorted(set(stop_ids))), context_length)


def compiled_context(model: Decoder, context_length: int, padded: int) -> int:
    """Return the context length for which a program is compiled.

    Unless an encoding uses the exact context length, all lengths that are padded alike share one
    program.
    """
    exact = any(encoding.uses_context_length for encoding in model.encodings)
    return context_length if exact else padded


@functools.partial(jax.jit, static_argnums=0)
def continue_prompts(call: Call, params: Any, inputs: Inputs) -> Continued:
    """Run the computation of `generate` on the devices as one program."""
    if isinstance(call.method, Beam):
        read = call.reader(params, inputs)
        logits_BV, cache = call.prefill(params, inputs)
        continued = beam_search(
            *(read, functools.partial(reorder, call.model), call.method, logits_BV, cache),
            *(call.new_tokens, call.stop_ids),
        )
        return _on_all(call, continued)
    state = go_on(call, params, inputs, start(call, params, inputs), call.new_tokens)
    return _on_all(call, drawn(state))


def continue_in_chunks(
    call: Call, params: Any, inputs: Inputs, on_tokens: Callable[[jax.Array], None]
) -> Continued:
    """Compute the result of `continue_prompts` in chunks, and call `on_tokens` after each chunk.

    One program chooses the first token. A second program, which runs repeatedly, chooses up to 8
    more tokens. `on_tokens` receives all tokens so far. Beam search is not supported.
    """
    state = start(call, params, inputs)
    continued = _on_all_devices(call, drawn(state))
    on_tokens(continued.tokens_BKT)
    for until in range(1 + _CHUNK, call.new_tokens + _CHUNK, _CHUNK):
        if np.asarray(continued.stopped_BK).all():
            break
        state = _go_on(call, params, inputs, state, min(until, call.new_tokens))
        continued = _on_all_devices(call, drawn(state))
        on_tokens(continued.tokens_BKT)
    return continued


@functools.partial(jax.jit, static_argnums=0)
def start(call: Call, params: Any, inputs: Inputs) -> Drawing:
    """Process the prompts and choose the first token of every continuation."""
    assert not isinstance(call.method, Beam)
    logits_BV, cache = call.prefill(params, inputs)
    keys_B = jax.random.wrap_key_data(inputs.keys_BU)
    return first_tokens(call.method, logits_BV, cache, keys_B, call.new_tokens, call.stop_ids)


def go_on(call: Call, params: Any, inputs: Inputs, state: Drawing, until: int) -> Drawing:
    """Choose more tokens until each continuation has `until` tokens or has stopped."""
    assert not isinstance(call.method, Beam)
    read = call.reader(params, inputs)
    return more_tokens(read, call.method, state, until, call.stop_ids)


_go_on = jax.jit(go_on, static_argnums=0, donate_argnames="state")


def _on_all(call: Call, continued: Continued) -> Continued:
    """Replicate the results on every device, so that each process of a job has all of them."""
    layout = call.model.activation_sharding
    return jax.tree.map(lambda x: replicate(x, layout), continued)


_on_all_devices = jax.jit(_on_all, static_argnums=0)


def abstract_inputs(
    model: Decoder,
    batch: int,
    prompt: int,
    new_tokens: int,
    context_length: int,
    mesh: Mesh | None = None,
) -> Inputs:
    """Return the shapes of `Inputs`, with `batch` prompts rounded up to a multiple of `ways`.

    Prompts are padded to `prompt` tokens, so a padded prompt and its continuation may exceed
    `context_length`.
    """
    layout = None
    if mesh is not None:
        batch += -batch % ways(mesh)
        layout = NamedSharding(mesh, BATCH)
    key_words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape

    def of(dtype: Any, *rest: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *rest), dtype, sharding=layout)

    pos_C = model.resampling.evaluation_positions(context_length)[0]
    return Inputs(
        of(jnp.int32, prompt),
        of(jnp.int32),
        of(jnp.uint32, *key_words),
        jax.ShapeDtypeStruct((prompt + new_tokens,), pos_C.dtype),
    )


def laid_out(rows: tuple[np.ndarray, ...], mesh: Mesh | None) -> tuple[Any, ...]:
    """Split the rows of arrays `[B, ...]` over the devices of `mesh`.

    The last row is repeated until the rows can be split evenly.
    """
    if mesh is None:
        return rows
    missing = -len(rows[0]) % ways(mesh)
    layout = NamedSharding(mesh, BATCH)
    whole = (np.concatenate([x, *[x[-1:]] * missing]) for x in rows)
    return tuple(jax.make_array_from_callback(x.shape, layout, x.__getitem__) for x in whole)


def ways(mesh: Mesh) -> int:
    """Return the number of parts into which `mesh` splits a batch."""
    return int(mesh.shape["data"] * mesh.shape["fsdp"])


def cache_bytes(call: Call, params: Any, inputs: Inputs, mesh: Mesh | None = None) -> int:
    """Return the size, in bytes, of what the layers remember on one device."""
    _, cache = jax.eval_shape(call.prefill, params, inputs)
    return sum(past.state.size_in_bytes(mesh) for past in cache)
