"""A check that decoding can follow an encoding that is not part of fire_lm.

Decoding calls the hooks of an encoding for one new token at a time, without the earlier tokens. A
hook that depends on other tokens than its own, as gates do that are computed from all keys, gives
other values in decoding than in training. Tests compare the two for the encodings of fire_lm, and
this module compares them for other encodings before the first text is generated.

Shapes: B examples, T new tokens, C context, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fire_lm.errors import UserError
from fire_lm.generation.methods import Greedy
from fire_lm.generation.programs import Call, Inputs, call_for, laid_out
from fire_lm.models import Decoder, padded_positions, readable_length
from fire_lm.models.layouts import replicate
from fire_lm.positions import PositionalEncoding, is_built_in

_CONTEXT = 32
# In standard deviations of the logits. In float32, decoding differs by less than 1e-5 of them.
_TOLERANCE = 1e-3
# The checked models, with the meshes and the identity of the smallest array of their parameters.
# The array is kept, because the identity of an array that is freed may become that of another one.
_checked: dict[tuple[Decoder, int, Mesh | None], jax.Array] = {}


def _with_parts(encoding: PositionalEncoding) -> Iterator[PositionalEncoding]:
    yield encoding
    for part in encoding.parts.values():
        yield from _with_parts(part)


def check_own_encodings(model: Decoder, params: Any, mesh: Mesh | None) -> None:
    """Compare decoding with one forward pass, unless all encodings and mixers are part of fire_lm.

    The comparison reads two random inputs of up to 32 tokens in float32, once in a process for the
    same model and parameters.

    Raises:
      UserError: The logits differ.
    """
    parts = [part for turn in model.turns for part in (*_with_parts(turn.encoding), turn.mixer)]
    own = [type(part).__name__ for part in parts if not is_built_in(part)]
    if not own:
        return
    array = min(jax.tree.leaves(params), key=lambda leaf: leaf.size)
    if (model, id(array), mesh) in _checked:
        return
    largest, deviation = largest_difference(model, params, mesh)
    if largest > _TOLERANCE * deviation:
        raise UserError(
            f"{', '.join(dict.fromkeys(own))} cannot be used to generate text: the logits of "
            f"decoding and of one forward pass differ by up to {largest:.3g} "
            f"({largest / deviation:.2g} standard deviations)\n"
            "a hook may use its parameters, the positions, and the query or key of the same token, "
            "but not other tokens or the shape of an array: see docs/add_an_encoding.md, and "
            "docs/add_a_mixer.md for mixers"
        )
    _checked[model, id(array), mesh] = array


def largest_difference(model: Decoder, params: Any, mesh: Mesh | None) -> tuple[float, float]:
    """Return the largest difference of the logits, and the standard deviation of the logits."""
    context = readable_length(model, 2, _CONTEXT)
    width = max(1, context * 3 // 4)
    exact = model.clone(dtype=jnp.dtype("float32"), attention="dense")
    call = call_for(exact, Greedy(), context - width, (), context, mesh)
    tokens_BC = np.random.default_rng(0).integers(1, model.vocab_size, (2, context), np.int32)
    tokens_BC[:, 0] = 0
    lengths_B = np.array([max(1, width - 4), width], np.int32)  # one prompt has padding
    keys_BU = np.zeros((2, 1), np.uint32)  # greedy decoding uses no key
    laid = laid_out((tokens_BC, tokens_BC[:, :width], lengths_B, keys_BU), mesh)
    inputs = Inputs(laid[1], laid[2], laid[3], padded_positions(model, context, context))
    with jax.default_matmul_precision("highest"):
        largest, deviation = _compared(call, params, laid[0], inputs)
    return float(largest), float(deviation)


@functools.partial(jax.jit, static_argnums=0)
def _compared(
    call: Call, params: Any, tokens_BC: jax.Array, inputs: Inputs
) -> tuple[jax.Array, jax.Array]:
    """Return the largest difference and the standard deviation of teacher-forced logits."""
    first_BV, cache = call.prefill(params, inputs)
    read = call.reader(params, inputs)

    def step(cache: Any, index: jax.Array) -> tuple[Any, jax.Array]:
        token_B1 = jnp.take_along_axis(tokens_BC, inputs.lengths_B[:, None] + index, axis=1)
        logits_B1V, cache = read(cache, token_B1, index)
        return cache, logits_B1V[:, 0]

    _, rest_TBV = jax.lax.scan(step, cache, jnp.arange(call.new_tokens))
    decoded_BTV = jnp.concatenate([first_BV[:, None], jnp.swapaxes(rest_TBV, 0, 1)], axis=1)
    whole: Any = call.model.apply({"params": params}, tokens_BC, inputs.pos_C[None])
    places_BT = inputs.lengths_B[:, None] - 1 + jnp.arange(call.new_tokens + 1)[None]
    expected_BTV = jnp.take_along_axis(whole, places_BT[..., None], axis=1)
    largest, deviation = jnp.max(jnp.abs(decoded_BTV - expected_BTV)), jnp.std(expected_BTV)
    layout = call.model.activation_sharding
    return replicate(largest, layout), replicate(deviation, layout)
