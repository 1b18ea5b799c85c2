"""From what `attend` is given to the kernels: when they can run, on each device of a mesh.

The kernels take the tokens of a document to be at positions that follow one another, and a bias to
be its tables. Whether that is so depends on numbers that are known at run time alone: so the step
holds `blockwise_attention` too, and takes it when it must.

Shapes: B batch, T tokens, N heads, H head dim.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.dense import BiasFn
from fire_lm.attention.tpu import tpu_attention
from fire_lm.attention.tpu.schedule import DTYPES, HEAD_DIMS


def obstacle(
    q_BTNH: jax.Array,
    q_pos_BT: jax.Array,
    bias: BiasFn,
    tables: CommonBias | None,
    in_order: bool,
) -> str | None:
    """Why the kernels cannot run, or None."""
    if not in_order:
        return "takes queries and keys that are the same tokens (in_order)"
    if q_BTNH.shape[3] not in HEAD_DIMS or q_BTNH.dtype.name not in DTYPES:
        dtypes, widths = " or ".join(DTYPES), " or ".join(map(str, HEAD_DIMS))
        return f"takes heads of width {widths} in {dtypes}, not {q_BTNH.shape[3]} in {q_BTNH.dtype}"
    if tables is None and has_bias(bias, q_pos_BT):
        return "takes a bias that has the common form, as FIRE has with ReLU"
    if tables is not None and not jnp.issubdtype(q_pos_BT.dtype, jnp.integer):
        return "takes a bias at integer positions"
    return None


def has_bias(bias: BiasFn, q_pos_BT: jax.Array) -> bool:
    one = jax.ShapeDtypeStruct((q_pos_BT.shape[0], 1), q_pos_BT.dtype)
    return jax.eval_shape(bias, one, one) is not None


def attend_on_tpu(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    *,
    pos_BT: jax.Array,
    bias: BiasFn,
    tables: CommonBias | None,
    logit_scale_BT: jax.Array | None,
    segment_BT: jax.Array | None,
    sharding: NamedSharding | None,
) -> jax.Array:
    """`attend` of tokens to themselves, where there is no `obstacle`."""
    by_place = segment_BT is None and pos_BT.shape[0] == 1
    pos_of_bias = None if by_place or tables is None else pos_BT
    by_token = (logit_scale_BT, segment_BT, pos_of_bias)
    kernel = functools.partial(_on_each_device, sharding, tables, by_token)
    if tables is None:  # positions order the tokens, and do no more
        return kernel(q_BTNH, k_BTNH, v_BTNH)

    @jax.checkpoint  # else what it keeps for its gradients would be kept for the kernel's
    def in_blocks(q_BTNH: jax.Array, k_BTNH: jax.Array, v_BTNH: jax.Array) -> jax.Array:
        return blockwise_attention(
            *(q_BTNH, k_BTNH, v_BTNH),
            q_pos_BT=pos_BT,
            k_pos_BS=pos_BT,
            bias=bias,
            logit_scale_BT=logit_scale_BT,
            q_segment_BT=segment_BT,
            k_segment_BS=segment_BT,
            # Without in_order: its groups of blocks, each a program, take minutes to compile.
        )

    if by_place:
        in_tables = jnp.all(pos_BT == _places(pos_BT))
    else:
        in_tables = _follow_one_another(pos_BT, segment_BT)
    return jax.lax.cond(in_tables & tables.exact, kernel, in_blocks, q_BTNH, k_BTNH, v_BTNH)


def _follow_one_another(pos_BT: jax.Array, segment_BT: jax.Array | None) -> jax.Array:
    """Whether tokens of a document are as far apart by position as by place, and in the tables."""
    shift_BT = pos_BT - _places(pos_BT)
    if segment_BT is None:
        segment_BT = jnp.zeros_like(pos_BT)
    by_document = jax.lax.sort(jnp.broadcast_arrays(segment_BT, shift_BT), num_keys=1)
    next_segment, next_shift = (jnp.diff(x_BT) != 0 for x_BT in by_document)
    in_tables_BT = (pos_BT >= 0) & (pos_BT < pos_BT.shape[1])
    return jnp.all(next_segment | ~next_shift) & jnp.all(in_tables_BT)


def _places(pos_BT: jax.Array) -> jax.Array:
    return jnp.arange(pos_BT.shape[1], dtype=pos_BT.dtype)[None]


def _on_each_device(
    sharding: NamedSharding | None,
    tables: CommonBias | None,
    by_token: tuple[jax.Array | None, ...],
    *qkv_BTNH: jax.Array,
) -> jax.Array:
    """The kernel, on every device's sequences and heads: XLA cannot split it by itself.

    `by_token`: factor on q k, segment and position of each, or None; B or 1.
    """

    def run(qkv_BTNH: Any, tables: Any, by_token: Any) -> jax.Array:
        scale_BT, segment_BT, pos_BT = by_token
        return tpu_attention(
            *qkv_BTNH,
            bias=tables,
            logit_scale_BT=scale_BT,
            segment_BT=segment_BT,
            pos_BT=pos_BT,
        )

    arguments = (qkv_BTNH, tables, by_token)
    if sharding is None or sharding.mesh.size == 1:
        return run(*arguments)
    batch, heads = (_axis(sharding, axis, qkv_BTNH[0].shape[axis]) for axis in (0, 2))
    by_example = PartitionSpec(batch, None, heads, None)

    def rows(x_BT: jax.Array | None) -> PartitionSpec:
        shared = x_BT is None or x_BT.shape[0] == 1
        return PartitionSpec() if shared else PartitionSpec(batch, None)

    of_tables: Any = None
    if tables is not None:
        of_tables = jax.tree.map(lambda _: PartitionSpec(), tables)
        by_head = {"slope_KN": PartitionSpec(None, heads), "offset_KN": PartitionSpec(None, heads)}
        if tables.slab_MP.shape[0] > 1:
            by_head["slab_MP"] = PartitionSpec(heads)
        of_tables = of_tables._replace(**by_head)
    return jax.shard_map(
        run,
        mesh=sharding.mesh,
        in_specs=(by_example, of_tables, tuple(map(rows, by_token))),
        out_specs=by_example,
        check_vma=False,
    )(*arguments)


def _axis(sharding: NamedSharding, axis: int, size: int) -> Any:
    """The mesh axes that split an array's `axis`; None, for whole, if they do not divide it."""
    names = sharding.spec[axis]
    parts = 1
    for name in (names,) if isinstance(names, str) else names or ():
        parts *= sharding.mesh.shape[name]
    return None if size % parts else names
