"""Flash attention for TPUs with the whole family of biases inside, and its gradients.

Logits and bias never leave the chip's VMEM: memory is O(n). The kernels see a bias as the tables of
`CommonBias` and return gradients to each of them, from which XLA continues to the parameters. The
tile of a bias is built once for all sequences of a batch, which is what makes it cheap.

Shapes: B batch, T tokens, N heads, H head dim, P places (padded to whole blocks).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.tpu.backward import Wanted, backward
from fire_lm.attention.tpu.forward import forward
from fire_lm.attention.tpu.schedule import Blocks, choose_blocks, log2_scale
from fire_lm.attention.tpu.tables import Tables

Residuals = tuple[Any, ...]


def tpu_attention(
    q_BTNH: jax.Array, k_BTNH: jax.Array, v_BTNH: jax.Array, **rest: Any
) -> jax.Array:
    """Causal attention of tokens to themselves, `[B, T, N, H]`; arguments as of `forward_pass`."""
    if rest.get("logit_scale_BT") is None:
        q_BTNH = scale_queries(q_BTNH)
    qkv_BTNH = (q_BTNH, k_BTNH, v_BTNH)
    return with_gradients(*forward_pass(*qkv_BTNH, **rest), *qkv_BTNH, **rest)


def scale_queries(q_BTNH: jax.Array, factor: jax.Array | float = 1.0) -> jax.Array:
    """Scale queries so that q·k is a logit in base 2, times `factor`. It is its own transpose."""
    scaled_BTNH = q_BTNH.astype(jnp.float32) * (log2_scale(q_BTNH.shape[3]) * factor)
    return scaled_BTNH.astype(q_BTNH.dtype)


def forward_pass(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    *,
    bias: CommonBias | None,
    logit_scale_BT: jax.Array | None = None,
    bias_scale_BT: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
    pos_BT: jax.Array | None = None,
    block_size: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The output `[B, T, N, H]`, and what its gradients need besides: log2 of the softmax's sums of
    2^logit, `[B, N, T]` float32. No gradient goes through it, see `with_gradients`.

    Args:
      q_BTNH, k_BTNH, v_BTNH: bfloat16 or float32, H 64 or 128; queries from `scale_queries`, or as
        they are where there is a `logit_scale_BT`: so that they are rounded once.
      bias: with tables of T positions at least, and of all in `pos_BT`; taken as exact.
      logit_scale_BT: factor on q k, or None; B or 1.
      bias_scale_BT: factor on the bias, or None; B or 1.
      segment_BT: int32, which document a token is of, or None; B or 1.
      pos_BT: int32, positions for the bias, B or 1; None: 0 .. T - 1. Those of a document follow
        one another. Where they or the factors on the bias differ by example, so does the bias: it
        is built for each.
      block_size: queries and keys of a tile, a multiple of 128; None: what suits the length.

    Raises:
      UserError: a head dim or dtype that the kernels do not have, or blocks that do not fit.
    """
    inputs = jax.lax.stop_gradient((q_BTNH, k_BTNH, v_BTNH, bias, logit_scale_BT, bias_scale_BT))
    blocks, arrays = _prepare(*inputs, segment_BT, pos_BT, block_size)
    out_BNHP, log_sum_BN1P = forward(*arrays, blocks)
    length = q_BTNH.shape[1]
    return _from_blocks(out_BNHP, length), log_sum_BN1P[:, :, 0, :length]


def with_gradients(
    out_BTNH: jax.Array,
    log_sum_BNT: jax.Array,
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    *,
    bias: CommonBias | None,
    logit_scale_BT: jax.Array | None = None,
    bias_scale_BT: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
    pos_BT: jax.Array | None = None,
    block_size: int | None = None,
) -> jax.Array:
    """`out_BTNH`, as a function of what `forward_pass` made it from."""
    inputs = (q_BTNH, k_BTNH, v_BTNH, bias, logit_scale_BT, bias_scale_BT)
    blocks, arrays = _prepare(*inputs, segment_BT, pos_BT, block_size)
    length = q_BTNH.shape[1]
    to_end = blocks.padded_length - length
    # Queries that do not exist attend to nothing: 2^(logit - log_sum) is 0.
    no_query = dict(mode="constant", constant_values=jnp.float32(1e30))
    log_sum_BN1P = jnp.pad(log_sum_BNT, ((0, 0), (0, 0), (0, to_end)), **no_query)[:, :, None]
    out_BNHP = _given(blocks, _to_blocks(out_BTNH, blocks), log_sum_BN1P, *arrays)
    return _from_blocks(out_BNHP, length)


class Prepared(NamedTuple):
    """The arguments of the kernels."""

    q_BNHP: jax.Array
    k_BNHP: jax.Array
    v_BNHP: jax.Array
    tables: Tables | None
    segments_B1P: jax.Array | None


def _prepare(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    bias: CommonBias | None,
    logit_scale_BT: jax.Array | None,
    bias_scale_BT: jax.Array | None,
    segment_BT: jax.Array | None,
    pos_BT: jax.Array | None,
    block_size: int | None,
) -> tuple[Blocks, Prepared]:
    batch, length, _, width = q_BTNH.shape
    alike = bias is None or all(x is None or x.shape[0] == 1 for x in (pos_BT, bias_scale_BT))
    blocks = choose_blocks(length, batch if alike else 1, width, q_BTNH.dtype, block_size)
    if logit_scale_BT is not None:
        q_BTNH = scale_queries(q_BTNH, logit_scale_BT[:, :, None, None])
    segments = None
    if segment_BT is not None:
        to_end = blocks.padded_length - length
        padded_BT = jnp.pad(segment_BT.astype(jnp.int32), ((0, 0), (0, to_end)), mode="edge")
        segments = jnp.broadcast_to(padded_BT[:, None], (batch, 1, blocks.padded_length))
    tables = None if bias is None else Tables.of(bias, pos_BT, bias_scale_BT, blocks, length)
    q_BNHP, k_BNHP, v_BNHP = (_to_blocks(x, blocks) for x in (q_BTNH, k_BTNH, v_BTNH))
    return blocks, Prepared(q_BNHP, k_BNHP, v_BNHP, tables, segments)


def _to_blocks(x_BTNH: jax.Array, blocks: Blocks) -> jax.Array:
    to_end = blocks.padded_length - x_BTNH.shape[1]
    return jnp.pad(jnp.transpose(x_BTNH, (0, 2, 3, 1)), ((0, 0), (0, 0), (0, 0), (0, to_end)))


def _from_blocks(x_BNHP: jax.Array, length: int) -> jax.Array:
    return jnp.transpose(x_BNHP, (0, 3, 1, 2))[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _given(blocks: Blocks, out_BNHP: jax.Array, *_: Any) -> jax.Array:
    return out_BNHP


def _given_forward(blocks: Blocks, *inputs: Any) -> tuple[Any, Residuals]:
    values = jax.tree.map(lambda x: x.value, inputs, is_leaf=lambda x: hasattr(x, "perturbed"))
    return values[0], (*values, Wanted.of(inputs[5]))


def _given_backward(blocks: Blocks, residuals: Residuals, d_out: Any) -> tuple[Any, ...]:
    out, log_sum, *arrays, wanted = residuals
    d_out = jnp.zeros_like(out) if not isinstance(d_out, jax.Array) else d_out
    q_BNHP, k_BNHP, v_BNHP, tables, segments = arrays
    inputs = (q_BNHP, k_BNHP, v_BNHP, out, d_out, log_sum)
    return None, None, *backward(*inputs, tables, segments, wanted, blocks), None


_given.defvjp(_given_forward, _given_backward, symbolic_zeros=True)
