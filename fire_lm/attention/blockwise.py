"""Attention over blocks of query rows: memory O(n) in the sequence length, any backend.

Each block is dense attention of its rows against the keys it may see, rematerialised in the
backward pass, so neither logits nor bias of more than one block exist at a time. `lax.map` (not a
Python loop) is what bounds the memory: XLA runs unrolled blocks side by side. As all iterations of
a map have the same shape, rows are first divided into a few groups, and the blocks of a group are
given the keys up to its end: of the keys above the diagonal, (groups + 1) / (2 groups) - 1/2
remain, 6 % of all with eight groups.
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
    """The same function as `dense_attention`, `block_size` query rows at a time.

    `in_order`: queries and keys are the same tokens in causal order, so that no query sees a key
    behind it in the array; those blocks are skipped.
    """
    length = q_BTNH.shape[1]
    blocks = -(-length // block_size)
    groups = min(groups, blocks) if in_order else 1
    # Each block adds its part to the gradients of k and v: in float32, whatever their dtype.
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
    """Dense attention of `rows` to `keys`, a block of rows after the other."""

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
    """`[B, T, ...] -> [blocks, B, size, ...]`; the last row is repeated to fill the last block."""
    padding = -rows.shape[1] % size
    rows = jnp.pad(rows, [(0, 0), (0, padding)] + [(0, 0)] * (rows.ndim - 2), mode="edge")
    blocks = rows.reshape(rows.shape[0], -1, size, *rows.shape[2:])
    return jnp.moveaxis(blocks, 1, 0)
