"""Flash attention for TPUs, with kernels that also compute the bias and its gradients.

The logits and the bias never leave the chip's VMEM, so the kernels need O(n) memory. They take the
bias as the tables of a `CommonBias` and return the gradients of these tables, from which XLA
computes the gradients of the encoding's parameters. The bias is cheap because each tile of it is
built only once for all sequences of a block.

Shapes: B batch, T tokens, N heads, H head dim, P tokens padded to a multiple of the block size.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding

from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.decay import Decay
from fire_lm.attention.saved_residuals import SAVED
from fire_lm.attention.tpu.backward import backward
from fire_lm.attention.tpu.decays import of_queries
from fire_lm.attention.tpu.devices import Devices, Inputs
from fire_lm.attention.tpu.forward import Outs, forward
from fire_lm.attention.tpu.schedule import Blocks, block_of_slices, choose_blocks, log2_scale
from fire_lm.attention.tpu.table_gradients import Wanted
from fire_lm.attention.tpu.tables import Tables


@jax.named_scope("tpu_attention")
def tpu_attention(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    *,
    bias: CommonBias | None,
    logit_scale_BT: jax.Array | None = None,
    bias_scale_BT: jax.Array | None = None,
    segment_BT: jax.Array | None = None,
    pos_BT: jax.Array | None = None,
    decay: Decay | None = None,
    sink_N: jax.Array | None = None,
    window: int | None = None,
    block_size: int | None = None,
    sharding: NamedSharding | None = None,
) -> jax.Array:
    """Return causal self-attention, `[B, T, N, H]` in the dtype of the queries.

    Arguments of shape `[B, T]` may have a batch axis of size 1 if all examples share them.

    Args:
      q_BTNH, k_BTNH, v_BTNH: The queries, keys and values, in bfloat16 or float32; H is 64 or 128.
        Values may be narrower (64) than queries and keys (128); the output is as wide as values.
      bias: The tables of the bias, or None for no bias. They must cover at least T positions, and
        all positions in `pos_BT`. The flag `exact` is ignored; the tables must be exact.
      logit_scale_BT: The factor on q·k for each query, or None for 1.
      bias_scale_BT: The factor on the bias for each query, or None for 1.
      segment_BT: The document that each token belongs to, int32, or None if every example is one
        document.
      pos_BT: The positions from which the bias is computed, int32, or None for 0 .. T - 1. Within a
        document, they must be consecutive. If `pos_BT` or `bias_scale_BT` has B rows, the bias may
        differ between examples and is built for each example separately.
      decay: The cumulative log forget gates of the tokens, or None.
      sink_N: The logit of each head's sink, or None (see `Terms`).
      window: The number of keys that a query sees, including its own, or None for no limit.
      block_size: The number of queries in a tile, which is also its number of keys: a multiple of
        128. None chooses it based on the length.
      sharding: The sharding of `q_BTNH` if it is split over a mesh, or None if it is not.

    Raises:
      UserError: The kernels do not support the head dim or the dtype, `block_size` is not a
        multiple of 128, or the blocks do not fit into VMEM.
    """
    batch, length, _, width = q_BTNH.shape
    devices = Devices.of(sharding, q_BTNH.shape)
    alike = bias is None or all(x is None or x.shape[0] == 1 for x in (pos_BT, bias_scale_BT))
    together = batch // devices.parts_of_batch if alike else 1
    if devices.slices > 1:
        block_size = block_of_slices(length, devices.slices)
        assert block_size is not None, "`dispatch.obstacle` names the lengths that can be split"
    blocks = choose_blocks(
        *(length, together, width, q_BTNH.dtype, block_size, window, decay is not None),
        of_values=v_BTNH.shape[3],
        split=devices.slices > 1,
    )
    blocks = dataclasses.replace(blocks, in_order=alike and pos_BT is None)
    if devices.slices > 1:
        blocks = dataclasses.replace(
            blocks, in_order=False, slices=devices.slices, axis=devices.sequence
        )
    scale = log2_scale(width)
    if logit_scale_BT is not None:
        q_BTNH, scale = scaled(q_BTNH, scale * logit_scale_BT[:, :, None, None]), 1.0
    segments_B1P = None
    if segment_BT is not None:
        to_end = blocks.padded_length - length
        padded_BT = jnp.pad(segment_BT.astype(jnp.int32), ((0, 0), (0, to_end)), mode="edge")
        segments_B1P = jnp.broadcast_to(padded_BT[:, None], (batch, 1, blocks.padded_length))
    tables = None if bias is None else Tables.of(bias, pos_BT, bias_scale_BT, blocks, length)
    q_BNHP, k_BNHP, v_BNHP = (_to_blocks(x_BTNH, blocks) for x_BTNH in (q_BTNH, k_BTNH, v_BTNH))
    decay_BN2P = None
    if decay is not None:
        decay_BTN2 = jnp.stack([decay.whole.astype(jnp.float32), decay.part], axis=-1)
        decay_BN2T = jnp.transpose(decay_BTN2, (0, 2, 3, 1))
        padding = ((0, 0), (0, 0), (0, 0), (0, blocks.padded_length - length))
        decay_BN2P = jnp.pad(decay_BN2T, padding, mode="edge")
    inputs = Inputs(q_BNHP, k_BNHP, v_BNHP, tables, segments_B1P, decay_BN2P)
    out_BNHP, log_sum_BN1P = _attention(blocks, devices, scale, inputs)
    if sink_N is not None:
        share_BN1P = _share_of_keys(log_sum_BN1P, sink_N, decay_BN2P, blocks)
        out_BNHP = (out_BNHP.astype(jnp.float32) * share_BN1P).astype(out_BNHP.dtype)
    return jnp.transpose(out_BNHP, (0, 3, 1, 2))[:, :length]


def _share_of_keys(
    log_sum_BN1P: jax.Array, sink_N: jax.Array, decay_BN2P: jax.Array | None, blocks: Blocks
) -> jax.Array:
    """Return the sum of each query's weights if its sink takes part in the softmax."""
    log_sum_BN1P = math.log(2) * log_sum_BN1P
    if decay_BN2P is not None:
        log_sum_BN1P = log_sum_BN1P + of_queries(decay_BN2P, blocks)[:, :, None]
    return jax.nn.sigmoid(log_sum_BN1P - sink_N[None, :, None, None])


def scaled(q: jax.Array, factor: Any) -> jax.Array:
    """Return the queries times `factor`, rounded only once."""
    return (q.astype(jnp.float32) * factor).astype(q.dtype)


def _to_blocks(x_BTNH: jax.Array, blocks: Blocks) -> jax.Array:
    to_end = blocks.padded_length - x_BTNH.shape[1]
    return jnp.pad(jnp.transpose(x_BTNH, (0, 2, 3, 1)), ((0, 0), (0, 0), (0, 0), (0, to_end)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(blocks: Blocks, devices: Devices, scale: float, inputs: Inputs) -> Outs:
    """Return the output and the log sums; q·k times `scale` is a logit in base 2."""
    inputs = inputs._replace(q_BNHP=scaled(inputs.q_BNHP, scale))
    return _forward(blocks, devices, inputs)


def _forward(blocks: Blocks, devices: Devices, inputs: Inputs) -> Outs:
    by_example, log_sums = devices.by_example(), devices.by_example()
    run = functools.partial(forward, blocks=blocks)
    return devices.run(run, inputs, out_specs=Outs(by_example, log_sums))


def _attention_forward(
    blocks: Blocks, devices: Devices, scale: float, inputs: Any
) -> tuple[Outs, Any]:
    wanted = Wanted.of(inputs.tables)
    inputs = jax.tree.map(lambda x: x.value, inputs, is_leaf=lambda x: hasattr(x, "perturbed"))
    inputs = inputs._replace(q_BNHP=scaled(inputs.q_BNHP, scale))
    out, log_sum = (checkpoint_name(x, SAVED) for x in _forward(blocks, devices, inputs))
    return Outs(out, log_sum), (wanted, inputs, out, log_sum)


def _attention_backward(
    blocks: Blocks, devices: Devices, scale: float, residuals: Any, d_outs: Any
) -> tuple[Inputs]:
    wanted, inputs, out, log_sum = residuals
    d_out, d_log_sum = d_outs
    if not isinstance(d_out, jax.Array):  # a symbolic zero
        d_out = jnp.zeros_like(out)
    specs = devices.specs(inputs)
    out_specs = specs._replace(tables=wanted.only(specs.tables), segments_B1P=None)

    def run(inputs: Inputs, *outs: jax.Array) -> Inputs:
        found = backward(inputs, *outs, scale=scale, wanted=wanted, blocks=blocks)
        return found._replace(tables=devices.sum_tables(found.tables, out_specs.tables))

    given = [out, d_out, log_sum]
    if isinstance(d_log_sum, jax.Array):
        given.append(d_log_sum)
    return (devices.run(run, inputs, *given, out_specs=out_specs),)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)
