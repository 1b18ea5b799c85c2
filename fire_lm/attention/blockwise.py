"""Attention over blocks of query rows: memory O(n) in the sequence length, any backend.

Each block is dense attention of its rows against all keys, rematerialised in the backward pass, so
neither logits nor bias of more than one block exist at a time. `lax.map` (not a Python loop) is
what bounds the memory: XLA runs unrolled blocks side by side.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import BiasFn, dense_attention


def _blocks(rows: jax.Array, size: int) -> jax.Array:
    """`[B, T, ...] -> [blocks, B, size, ...]`; the last row is repeated to fill the last block."""
    padding = -rows.shape[1] % size
    rows = jnp.pad(rows, [(0, 0), (0, padding)] + [(0, 0)] * (rows.ndim - 2), mode="edge")
    blocks = rows.reshape(rows.shape[0], -1, size, *rows.shape[2:])
    return jnp.moveaxis(blocks, 1, 0)


def blockwise_attention(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    *,
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    bias: BiasFn,
    logit_scale_BT: jax.Array | None = None,
    block_size: int = 256,
) -> jax.Array:
    """The same function as `dense_attention`, `block_size` query rows at a time."""

    # Each block adds its part to the gradients of k and v: in float32, whatever their dtype.
    k32_BSNH, v32_BSNH = k_BSNH.astype(jnp.float32), v_BSNH.astype(jnp.float32)

    @jax.checkpoint
    def attend_rows(block: dict[str, jax.Array]) -> jax.Array:
        return dense_attention(
            block["q"],
            k32_BSNH.astype(k_BSNH.dtype),
            v32_BSNH.astype(v_BSNH.dtype),
            q_pos_BT=block["pos"],
            k_pos_BS=k_pos_BS,
            bias=bias,
            logit_scale_BT=block.get("scale"),
        )

    rows = {"q": q_BTNH, "pos": q_pos_BT}
    if logit_scale_BT is not None:
        rows["scale"] = logit_scale_BT
    batch, length = q_BTNH.shape[:2]
    size = min(block_size, length)
    out = jax.lax.map(attend_rows, {name: _blocks(row, size) for name, row in rows.items()})
    return jnp.moveaxis(out, 0, 1).reshape(batch, -1, *q_BTNH.shape[2:])[:, :length]
