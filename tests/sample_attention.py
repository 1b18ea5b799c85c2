"""Inputs for attention, the kernels and dense attention on them, and their comparison."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention import CommonBias, Mask, Terms, Tokens
from fire_lm.attention.dense import dense_attention
from fire_lm.attention.tpu import tpu_attention
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.kerple import KERPLELog
from fire_lm.positions.nope import NoPE
from fire_lm.positions.sandwich import Sandwich
from fire_lm.positions.t5 import T5

BATCH, HEADS, WIDTH, BLOCK = 2, 2, 64, 128
# Not a multiple of the block; three blocks, so that dq sums over up to three columns of tiles.
LENGTH = 300
ENCODINGS: dict[str, Any] = {
    "nope": NoPE,
    "fire": functools.partial(FIRE, init_L=100.0),
    "fire_g": functools.partial(FIRE, init_L=60.0, init_gamma=0.7, hidden_layers=1),
    # Distances reach twice the limit, so x reaches 1.2, beyond the last kink.
    "fire_frozen": functools.partial(FIRE, init_L=60.0, init_gamma=0.7, normalizer_limit=140),
    "fire_t": functools.partial(FIRE, learn_L=False, init_L=150.0, normalizer_limit=150),
    "alibi": ALiBi,
    "kerple": KERPLELog,
    "t5": T5,
    "sandwich": Sandwich,
}


def encoding_of(name: str, width: int = WIDTH, length: int = LENGTH) -> PositionalEncoding:
    return ENCODINGS[name](HEADS, width, length, HEADS * width)


def content(length: int = LENGTH, width: int = WIDTH, dtype: Any = jnp.float32) -> Any:
    """Return queries, keys, values, and weights for the output in a loss."""
    shape = (4, BATCH, length, HEADS, width)
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def documents(length: int = LENGTH) -> jax.Array:
    """Return segments; those of one example cross block edges, the other is one document."""
    ends = np.array([[length // 3, length // 3 + 1, 7 * length // 8], [length] * 3])
    starts = np.arange(length)[None, :, None] >= ends[:, None, :]
    return jnp.asarray(starts.sum(axis=2), jnp.int32)


def restarting(segment: jax.Array) -> jax.Array:
    """Return positions that start at 0 in every document."""
    place = jnp.arange(segment.shape[1])[None]
    begins = jnp.diff(segment, axis=1, prepend=-1) != 0
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)


def by_kernel(
    bias: CommonBias | None,
    x: jax.Array,
    scale: Any = None,
    segment: Any = None,
    pos: Any = None,
    block: int = BLOCK,
    window: int | None = None,
) -> jax.Array:
    return tpu_attention(
        *x[:3],
        bias=bias,
        logit_scale_BT=scale,
        bias_scale_BT=opposite(scale),
        segment_BT=segment,
        pos_BT=pos,
        window=window,
        block_size=block,
    )


def opposite(scale: Any) -> Any:
    """Return a factor for the bias that is large where the scale of q·k is small."""
    return None if scale is None else 2 - scale


def by_dense(
    bias: Any,
    x: jax.Array,
    scale: Any = None,
    segment: Any = None,
    pos: Any = None,
    window: int | None = None,
) -> jax.Array:
    pos = jnp.arange(x.shape[2])[None] if pos is None else pos
    (q, k, v), tokens = x[:3], Tokens(pos, segment)
    terms = Terms(bias, scale, opposite(scale))
    return dense_attention(q, k, v, tokens, tokens, terms, Mask(window=window))


def kernel_with(encoding: PositionalEncoding, **given: Any) -> Any:
    """Return the kernel as a function of an encoding's parameters, `x` and a scale."""
    return lambda params, x, scale=None: by_kernel(
        encoding.common_bias(params, LENGTH, LENGTH), x, scale, **given
    )


def dense_with(encoding: PositionalEncoding, **given: Any) -> Any:
    """Return dense attention as a function of an encoding's parameters, `x` and a scale."""

    def dense(params: Any, x: jax.Array, scale: Any = None) -> jax.Array:
        bias = functools.partial(encoding.bias, params, context_length=LENGTH)
        return by_dense(lambda q, k: bias(q, k), x, scale, **given)

    return dense


def outputs_and_gradients(function: Any, *arguments: Any) -> Any:
    """Return the gradients of `function(params, x, scale)` to all arguments, and its output."""

    def loss(*arguments: Any) -> Any:
        out = function(*arguments)
        return jnp.sum(out.astype(jnp.float32) * arguments[1][3].astype(jnp.float32)), out

    argnums = tuple(range(len(arguments)))
    return jax.jit(jax.grad(loss, argnums, has_aux=True))(*arguments)


def assert_close(ours: Any, wanted: Any, relative: float) -> None:
    """Compare leaf by leaf, relative to each leaf's largest value.

    A leaf that is 0 up to rounding is compared relative to a tenth of the tree's largest value.
    """
    largest = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted))

    def check(path: Any, ours: jax.Array, wanted: jax.Array) -> None:
        scale = max(float(jnp.max(jnp.abs(wanted))), 0.1 * largest)
        error = float(jnp.max(jnp.abs(ours.astype(jnp.float32) - wanted.astype(jnp.float32))))
        assert error <= relative * scale, (jax.tree_util.keystr(path), error, scale)

    jax.tree_util.tree_map_with_path(check, ours, wanted)


def fire_tables(length: int = LENGTH) -> CommonBias:
    encoding = encoding_of("fire_g", length=length)
    tables = encoding.common_bias(encoding.init(jax.random.key(1)), length, length)
    assert tables is not None
    return tables
