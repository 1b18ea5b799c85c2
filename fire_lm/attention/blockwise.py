"""Attention in blocks of query rows on any backend, with O(n) memory for sequences of length n.

Each block is dense attention from its query rows to the keys that these rows may see. The backward
pass recomputes the block, so the logits and the bias of only one block exist at a time. The loop is
a `lax.map`, because XLA could run the blocks of an unrolled Python loop in parallel, which would
need more memory. All iterations of a map have the same shapes. The rows are therefore first divided
into a few groups, and every block of a group receives the keys up to the end of that group. The
fraction of query-key pairs that is computed needlessly above the diagonal is (groups + 1) / (2
groups) - 1/2, which is 6 % with eight groups.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import dense_attention
from fire_lm.attention.terms import CAUSAL, NO_TERMS, BiasFn, Mask, Terms, Tokens


class Rows(NamedTuple):
    """Queries, with what belongs to each of them, `[B or 1, T, ...]`."""

    q: jax.Array
    tokens: Tokens
    logit_scale: jax.Array | None
    bias_scale: jax.Array | None


class Columns(NamedTuple):
    """Keys and values, with what belongs to each of them, `[B or 1, S, ...]`."""

    k: jax.Array
    v: jax.Array
    tokens: Tokens


def blockwise_attention(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    queries: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
    mask: Mask = CAUSAL,
    *,
    in_order: bool = False,
    block_size: int = 64,
    groups: int = 8,
) -> jax.Array:
    """Compute `dense_attention` for `block_size` query rows at a time; return `[B, T, N, H]`.

    If `in_order` is set, queries and keys are the same tokens in causal order. No query then sees a
    key that comes after it in the array, and most such keys are skipped.
    """
    length = q_BTNH.shape[1]
    blocks = -(-length // block_size)
    skips = in_order and mask.causal
    groups = min(groups, blocks) if skips else 1
    # The gradients of k and v are sums over the blocks. They are accumulated in float32, whatever
    # the dtype of k and v.
    columns = Columns(k_BSNH.astype(jnp.float32), v_BSNH.astype(jnp.float32), keys)
    rows = Rows(q_BTNH, queries, terms.logit_scale_BT, terms.bias_scale_BT)
    outs = []
    for group in range(groups):
        first, last = (block_size * (blocks * edge // groups) for edge in (group, group + 1))
        before = jax.tree.map(lambda x: x[:, :last], columns) if skips else columns  # noqa: B023
        part = jax.tree.map(lambda x: x[:, first:last], rows)  # noqa: B023
        outs.append(_attend_rows(part, before, k_BSNH.dtype, terms.bias, mask, block_size))
    return jnp.concatenate(outs, axis=1)


def _attend_rows(
    rows: Rows,
    columns: Columns,
    dtype: jnp.dtype,
    bias: BiasFn | None,
    mask: Mask,
    block_size: int,
) -> jax.Array:
    """Compute dense attention from `rows` to `columns`, one block of rows at a time."""

    @jax.checkpoint
    def attend_block(block: Rows) -> jax.Array:
        return dense_attention(
            block.q,
            columns.k.astype(dtype),
            columns.v.astype(dtype),
            block.tokens,
            columns.tokens,
            Terms(bias, block.logit_scale, block.bias_scale),
            mask,
        )

    batch, length = rows.q.shape[:2]
    size = min(block_size, length)
    out = jax.lax.map(attend_block, jax.tree.map(lambda x: _blocks(x, size), rows))
    return jnp.moveaxis(out, 0, 1).reshape(batch, -1, *out.shape[3:])[:, :length]


def _blocks(rows: jax.Array, size: int) -> jax.Array:
    """Split `[B, T, ...]` into `[blocks, B, size, ...]`.

    The last block is padded with copies of the last row.
    """
    padding = -rows.shape[1] % size
    rows = jnp.pad(rows, [(0, 0), (0, padding)] + [(0, 0)] * (rows.ndim - 2), mode="edge")
    blocks = rows.reshape(rows.shape[0], -1, size, *rows.shape[2:])
    return jnp.moveaxis(blocks, 1, 0)
