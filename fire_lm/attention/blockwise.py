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

from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import BiasFn, dense_attention


def blockwise_attention(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    *,
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    bias: BiasFn,
    logit_scale_BT: jax.Array | None = None,
    bias_scale_BT: jax.Array | None = None,
    q_segment_BT: jax.Array | None = None,
    k_segment_BS: jax.Array | None = None,
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
    groups = min(groups, blocks) if in_order else 1
    # The gradients of k and v are sums over the blocks. They are accumulated in float32, whatever
    # the dtype of k and v.
    keys = {
        "k": k_BSNH.astype(jnp.float32),
        "v": v_BSNH.astype(jnp.float32),
        "pos": k_pos_BS,
        "segment": k_segment_BS,
    }
    rows = {
        "q": q_BTNH,
        "pos": q_pos_BT,
        "scale": logit_scale_BT,
        "bias_scale": bias_scale_BT,
        "segment": q_segment_BT,
    }
    outs = []
    for group in range(groups):
        first, last = (block_size * (blocks * edge // groups) for edge in (group, group + 1))
        seen = jax.tree.map(lambda x: x[:, :last], keys) if in_order else keys  # noqa: B023
        part = jax.tree.map(lambda x: x[:, first:last], rows)  # noqa: B023
        outs.append(_attend_rows(part, seen, k_BSNH.dtype, bias, block_size))
    return jnp.concatenate(outs, axis=1)


def _attend_rows(
    rows: dict[str, Any],
    keys: dict[str, Any],
    dtype: jnp.dtype,
    bias: BiasFn,
    block_size: int,
) -> jax.Array:
    """Compute dense attention from `rows` to `keys`, one block of rows at a time."""

    @jax.checkpoint
    def attend_block(block: dict[str, Any]) -> jax.Array:
        return dense_attention(
            block["q"],
            keys["k"].astype(dtype),
            keys["v"].astype(dtype),
            q_pos_BT=block["pos"],
            k_pos_BS=keys["pos"],
            bias=bias,
            logit_scale_BT=block["scale"],
            bias_scale_BT=block["bias_scale"],
            q_segment_BT=block["segment"],
            k_segment_BS=keys["segment"],
        )

    batch, length = rows["q"].shape[:2]
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
