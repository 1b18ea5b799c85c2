"""Flash attention for TPUs with the whole family of biases inside, and its gradients.

Logits and bias never leave the chip's VMEM: memory is O(n). The kernels see a bias as the tables of
`CommonBias` and return gradients to each of them, from where XLA goes on to the parameters. The
tile of a bias is built once for all sequences of a batch, which is what makes it cheap.

Shapes: B batch, T tokens, N heads, H head dim, P places (padded to whole blocks).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.tpu.backward import Wanted, backward
from fire_lm.attention.tpu.forward import forward
from fire_lm.attention.tpu.schedule import Blocks, choose_blocks, log2_scale
from fire_lm.attention.tpu.tables import Tables

Residuals = tuple[Any, ...]


def tpu_attention(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    *,
    bias: CommonBias | None,
    logit_scale_BT: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
    pos_BT: jax.Array | None = None,
    block_size: int | None = None,
) -> jax.Array:
    """Causal attention of tokens to themselves, `[B, T, N, H]`.

    Args:
      q_BTNH, k_BTNH, v_BTNH: bfloat16 or float32, H 64 or 128.
      bias: with tables of T positions at least, and of all in `pos_BT`; taken as exact.
      logit_scale_BT: factor on q k, or None; B or 1.
      segment_BT: int32, which document a token is of, or None; B or 1.
      pos_BT: int32, positions for the bias, B or 1; None: 0 .. T - 1. Those of a document follow
        one another. Where they differ by example, so does the bias: it is built for each.
      block_size: queries and keys of a tile, a multiple of 128; None: what suits the length.

    Raises:
      UserError: a head dim or dtype that the kernels do not have, or blocks that do not fit.
    """
    batch, length, _, width = q_BTNH.shape
    alike = bias is None or pos_BT is None or pos_BT.shape[0] == 1
    blocks = choose_blocks(length, batch if alike else 1, width, q_BTNH.dtype, block_size)
    scale = jnp.float32(log2_scale(width))
    if logit_scale_BT is not None:
        scale = scale * logit_scale_BT[:, :, None, None]
    q_BTNH = (q_BTNH.astype(jnp.float32) * scale).astype(q_BTNH.dtype)
    to_end = blocks.padded_length - length

    def to_blocks(x_BTNH: jax.Array) -> jax.Array:
        return jnp.pad(jnp.transpose(x_BTNH, (2, 0, 3, 1)), ((0, 0), (0, 0), (0, 0), (0, to_end)))

    segments = None
    if segment_BT is not None:
        padded_BT = jnp.pad(segment_BT.astype(jnp.int32), ((0, 0), (0, to_end)), mode="edge")
        segments = jnp.broadcast_to(padded_BT[:, None], (batch, 1, blocks.padded_length))
    out_NBHP = _attention(
        blocks,
        *(to_blocks(x) for x in (q_BTNH, k_BTNH, v_BTNH)),
        None if bias is None else Tables.of(bias, pos_BT, blocks, length),
        segments,
    )
    return jnp.transpose(out_NBHP, (1, 3, 0, 2))[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    blocks: Blocks,
    q_NBHP: jax.Array,
    k_NBHP: jax.Array,
    v_NBHP: jax.Array,
    tables: Tables | None,
    segments: jax.Array | None,
) -> jax.Array:
    return forward(q_NBHP, k_NBHP, v_NBHP, tables, segments, blocks)[0]


def _attention_forward(blocks: Blocks, *inputs: Any) -> tuple[Any, Residuals]:
    wanted = Wanted.of(inputs[3])
    values = jax.tree.map(lambda x: x.value, inputs, is_leaf=lambda x: hasattr(x, "perturbed"))
    q_NBHP, k_NBHP, v_NBHP, tables, segments = values
    out, log_sum = forward(q_NBHP, k_NBHP, v_NBHP, tables, segments, blocks)
    return out, (*values, out, log_sum, wanted)


def _attention_backward(blocks: Blocks, residuals: Residuals, d_out: Any) -> tuple[Any, ...]:
    q_NBHP, k_NBHP, v_NBHP, tables, segments, out, log_sum, wanted = residuals
    d_out = jnp.zeros_like(out) if not isinstance(d_out, jax.Array) else d_out
    inputs = (q_NBHP, k_NBHP, v_NBHP, out, d_out, log_sum)
    return *backward(*inputs, tables, segments, wanted, blocks), None


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)
