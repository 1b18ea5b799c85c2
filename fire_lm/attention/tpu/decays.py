"""Forget gates in the kernels, as further rows of queries and keys.

The logit of query i and key j contains the difference c_i - c_j of cumulative log gates. A softmax
ignores what all keys of a query share, so the kernels count from the first tokens I and J of the
blocks of the query and of the key, and replace c_i with c_I:

    c_I - c_j = (c_I - c_J) + (c_J - c_j)

The first difference is one number for each tile and sequence. It is added to a row with one value
per query, such as the running maximum, not to the logits. The second belongs to the key: queries
get rows of ones, and keys get rows whose sum is this difference, so that q·k contains it. This
takes no time, because an MXU contracts 128 rows at once, and heads have 64. In bfloat16, three rows
have the 24 bits of a float32 number.

The whole numbers of `Decay` are subtracted before they are rounded. Since I and J are the first
tokens, no later gate changes what a query reads, not even by rounding. The gates of another
document in the same block change its rounding alone.

Shapes: B batch, N heads, P tokens (padded), C blocks of R tokens, E rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.tpu.schedule import SUBLANES, Blocks

LOG2_E = math.log2(math.e)


class KeyDecays(NamedTuple):
    """The decays of keys: arrays, block specs, or references inside a kernel.

    Attributes:
      rows: Rows whose sum is log2(e) (c_J - c_j) for each key, followed by zeros, `[B, N, E, P]`.
      first: The whole and the part of c_J for each block, float32 `[B, N, 2, C]` in scalar memory.
    """

    rows: Any
    first: Any

    @classmethod
    def of(cls, decay_BN2P: jax.Array, blocks: Blocks, dtype: jnp.dtype) -> KeyDecays:
        """Return the arrays for `Inputs.decay_BN2P` and keys of this dtype."""
        first_BN2C = decay_BN2P[..., :: blocks.tokens]
        rest_BNP = LOG2_E * jnp.sum(_to_tokens(first_BN2C, blocks) - decay_BN2P, axis=2)
        rows = []
        for _ in range(1 if dtype == jnp.float32 else 3):
            kept = jnp.finfo(dtype)
            rounded_BNP = jax.lax.reduce_precision(rest_BNP, kept.nexp, kept.nmant)
            rows.append(rounded_BNP)
            rest_BNP = rest_BNP - rounded_BNP
        rows_BNEP = jnp.stack(rows, axis=2).astype(dtype)
        to_register = (0, rows_of_ones(dtype) - len(rows))
        return cls(jnp.pad(rows_BNEP, ((0, 0), (0, 0), to_register, (0, 0))), first_BN2C)

    def between_blocks(self, b: Any, query_block: Any, key_block: Any) -> jax.Array:
        """Return log2(e) (c_I - c_J) for sequence b in a kernel, a float32 scalar."""
        whole, part = (
            self.first[b, 0, row, query_block] - self.first[b, 0, row, key_block]
            for row in range(2)
        )
        return LOG2_E * (whole + part)


def of_queries(decay_BN2P: jax.Array, blocks: Blocks) -> jax.Array:
    """Return c_i - c_I for each query, which the kernels do not add to the logits, `[B, N, P]`.

    c_I counts as a constant, as in the gradients of the kernels, because it is in no logit.
    """
    first_BN2C = jax.lax.stop_gradient(decay_BN2P[..., :: blocks.tokens])
    return jnp.sum(decay_BN2P - _to_tokens(first_BN2C, blocks), axis=2)


def _to_tokens(x_BN2C: jax.Array, blocks: Blocks) -> jax.Array:
    return jnp.repeat(x_BN2C, blocks.tokens, axis=3)


def rows_of_ones(dtype: jnp.dtype) -> int:
    """Return the number of rows that `with_ones` adds: those of a register."""
    return SUBLANES * 4 // jnp.dtype(dtype).itemsize


def with_ones(x: jax.Array) -> jax.Array:
    """Return `x` `[H, tokens]` with rows of ones below it."""
    return jnp.concatenate([x, jnp.ones((rows_of_ones(x.dtype), x.shape[1]), x.dtype)])
