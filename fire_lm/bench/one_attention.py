"""One attention call: its memory with FIRE's bias, and its accuracy compared with `dense`.

Shapes: B batch, T positions, N heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention import Implementation, Layout, Mask, TabulatedBias, Terms, Tokens, attend
from fire_lm.attention.terms import CAUSAL
from fire_lm.bench.encodings import TRAIN_LENGTH
from fire_lm.bench.race import Row
from fire_lm.console import say
from fire_lm.models import ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.fire import FIRE
from fire_lm.positions.resampling import Resampling

# Accuracy is measured at this length: its positions lie on both sides of FIRE's threshold, and
# `dense` attention still fits in memory.
ACCURACY_LENGTH = 1024

Call = Callable[..., Any]


def memory(
    lengths: Sequence[int], implementation: Implementation, size: ModelSize
) -> Iterator[Row]:
    """Yield the temporary memory of the forward and gradient programs for each length.

    The growth is relative to the previous length, or None where either number is unknown.
    """
    last: tuple[int | None, ...] = (None, None)
    for length in sorted(set(lengths)):
        say(f"compiling one FIRE attention, {implementation}, length {length}")
        inputs = jax.eval_shape(lambda: inputs_of(_fire(size), length, size))  # noqa: B023
        sizes = tuple(
            temp_bytes(jax.jit(call).lower(*inputs).compile())
            for call in calls(_fire(size), length, implementation)
        )
        row: Row = {"implementation": implementation, "length": length}
        for name, now, before in zip(("forward", "gradient"), sizes, last, strict=True):
            row[f"{name}_bytes"] = now
            row[f"{name}_growth"] = now / before if now and before else None
        yield row
        last = sizes


def accuracy(implementation: Implementation, size: ModelSize) -> Row:
    """Compare an implementation with `dense` on the same random inputs in float32.

    The errors are relative: of the output, and the largest of the gradients with respect to the
    queries, the keys, the values and FIRE's parameters.
    """
    inputs = inputs_of(_fire(size), ACCURACY_LENGTH, size)
    (out, gradients), (dense_out, dense_gradients) = (
        tuple(jax.jit(call)(*inputs) for call in calls(_fire(size), ACCURACY_LENGTH, name))
        for name in (implementation, "dense")
    )
    return {
        "implementation": implementation,
        "length": ACCURACY_LENGTH,
        "output_error": _relative_error(out, dense_out),
        # Python's built-in `max` could drop a NaN.
        "gradient_error": float(np.max(list(map(_relative_error, gradients, dense_gradients)))),
    }


def temp_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Return the bytes that a call needs besides its arguments and results, or None if unknown."""
    memory = compiled.memory_analysis()
    return None if memory is None else memory.temp_size_in_bytes


def _relative_error(actual: Any, expected: Any) -> float:
    """Return |actual - expected| / |expected|, treating each tree as a single vector."""

    def length(tree: Any) -> float:
        return float(jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))))

    return length(jax.tree.map(jnp.subtract, actual, expected)) / length(expected)


def _fire(size: ModelSize) -> FIRE:
    return FIRE(size.num_heads, size.head_dim, TRAIN_LENGTH, size.hidden_size)


def inputs_of(encoding: PositionalEncoding, length: int, size: ModelSize) -> tuple[Any, ...]:
    """Return random inputs: the output's gradient `[1, T, N, H]`, the parameters, q, k and v."""
    rng, *rngs = jax.random.split(jax.random.key(0), 5)
    shape = (1, length, size.num_heads, size.head_dim)
    d_out, *qkv = (jax.random.normal(key, shape) for key in rngs)
    return d_out, encoding.init(rng), *qkv


def calls(
    encoding: PositionalEncoding, length: int, implementation: Implementation, mask: Mask = CAUSAL
) -> tuple[Call, Call]:
    """Return two functions of `inputs_of`, which compute attention and its gradients.

    The gradients are with respect to the encoding's parameters, q, k and v.
    """

    def forward(params: Params, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        tokens = Tokens(Resampling().evaluation_positions(length))
        prepared = encoding.prepare(params)
        tables = encoding.common_bias(prepared, length, length)

        def bias(q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
            return encoding.bias(prepared, q_pos_BT, k_pos_BS, length)

        terms = Terms(bias if tables is None else TabulatedBias(bias, tables))
        layout = Layout(in_order=True, consecutive=True, implementation=implementation)
        return attend(q, k, v, tokens, tokens, terms, mask, layout)

    def output(d_out_BTNH: jax.Array, *inputs: Any) -> jax.Array:
        del d_out_BTNH
        return forward(*inputs)

    def gradients(d_out_BTNH: jax.Array, *inputs: Any) -> Any:
        return jax.vjp(forward, *inputs)[1](d_out_BTNH)

    return output, gradients
