"""The backward kernel, which computes the gradients of q, k, v and the bias tables in one pass.

For each head and tile, the kernel rebuilds the bias once. It then processes one sequence at a time
and computes, with p = 2^(s - log_sum) and the sum D = sum o do for each query,

    dv += do p^T ,   ds = p (v do - D) ,   dk += q ds^T ,   dq += k ds

(Dao et al., 2022). The kernel completes the tiles of one key block before it proceeds to the next,
so dk and dv stay on the chip. The sums of dq are stored in HBM: each tile reads those of its
queries, adds its contribution and writes them back, in a fixed order, and the tile on the diagonal
is the last to contribute. ds is first summed over the sequences, so the gradients of the tables are
computed only once per tile (`bias_gradient.add_gradient`). The derivative of 2^s contains a factor
ln 2, which is applied to the gradients of the tables after the kernel.

The logit of query i and key j contains the difference c_i - c_j of decays. The sums of ds over the
queries, and those over the keys, are therefore further rows of dk and dq: q and k get rows of ones
(q has them anyway, see `decays`).
In exact arithmetic, the sum over the keys is known without them, because the softmax ignores what
all keys of a query share. But D comes from an output that is rounded, and a gate, whose gradient
adds up the gradients of all later decays, would add up this error over all later queries.

Shapes: N heads, B batch, G groups of sequences, H head dim, P tokens (padded), R = 128 lanes, X
rows of all sums; C, U, S and W as in `near_tables`.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.bias_gradient import add_gradient
from fire_lm.attention.tpu.bias_tile import build
from fire_lm.attention.tpu.dealt import dealt, placed, returned, summed
from fire_lm.attention.tpu.decays import KeyDecays, with_ones
from fire_lm.attention.tpu.devices import Inputs
from fire_lm.attention.tpu.forward import (
    KEYS_BY_QUERIES,
    for_device,
    for_each_sequence,
    logits,
    product,
    shifted,
)
from fire_lm.attention.tpu.near_tables import SUMS, NearTables
from fire_lm.attention.tpu.operands import SELDOM, Operands, Sides
from fire_lm.attention.tpu.parts import BiasRefs
from fire_lm.attention.tpu.pieces import Place, pieces
from fire_lm.attention.tpu.schedule import LANES, SUBLANES, Blocks
from fire_lm.attention.tpu.sums import Sums, rows_in_scratch
from fire_lm.attention.tpu.table_gradients import Wanted, sizes_of_sums, to_tables, with_near

Ref = Any
LN_2 = math.log(2)
OVER_QUERIES = (((1,), (1,)), ((), ()))  # [H, queries] and [keys, queries]: contracts the queries


class Ins(NamedTuple):
    """The inputs of the backward kernel: arrays, block specs, or references inside the kernel.

    Attributes:
      q, k, v, d_out: The queries, keys and values, and the gradient of the output, `[B, N, H, P]`.
      log_sum: The log2 of each query's sum of 2^logit, `[B, N, 1, P]`.
      mean: The sum D for each query, `[B, N, 1, P]`.
      segments: The documents of the queries and keys, or None.
      bias: The tables of the bias, or None.
      decay: The decays of the keys, or None.
    """

    q: Any
    k: Any
    v: Any
    d_out: Any
    log_sum: Any
    mean: Any
    segments: Sides | None
    bias: BiasRefs | None
    decay: KeyDecays | None


class Outs(NamedTuple):
    """The outputs of the backward kernel: the gradients of q, k and v, and the sums of `sums.Sums`.

    Attributes:
      d_q, d_k, d_v: The gradients, `[B, N, H, P]`.
      d_q_sums: The sums of dq, float32 `[B, N, H or more, P]`. With decays, row H is the gradient
        of the logits in base 2, summed over the keys of each query.
      sums: All sums except those near the diagonal, `[G, N, X, 1, R]`, or None.
      near: The sums near the diagonal, `[G, N, C, U, S, W]` (see `near_tables`), or None.
      d_s: The gradient of the logits in base 2, summed over the queries of each key, float32
        `[B, N, 1, P]`, or None.
    """

    d_q: Any
    d_k: Any
    d_v: Any
    d_q_sums: Any
    sums: Any | None
    near: Any | None
    d_s: Any | None


class Scratch(NamedTuple):
    """The scratch memory of the backward kernel.

    Attributes:
      d_q, d_k, d_v: The gradients of each sequence, accumulated for the current blocks. If there
        are decays, d_q and d_k have further rows, each of which contains the sums of ds.
      copied: The semaphores, for each sequence, of the copies of dq from HBM (row 0) and to HBM
        (row 1).
      tile: The bias of the current tile.
      d_tile: The gradient of this bias, summed over the sequences.
      sums, skewed: The scratch memory of `sums.Sums`.
    """

    d_q: Any
    d_k: Any
    d_v: Any
    copied: Any
    tile: Any | None
    d_tile: Any | None
    sums: Any | None
    skewed: Any | None


def backward(
    inputs: Inputs,
    out_BNHP: jax.Array,
    d_out_BNHP: jax.Array,
    log_sum_BN1P: jax.Array,
    d_log_sum_BN1P: jax.Array | None = None,
    *,
    scale: float,
    wanted: Wanted,
    blocks: Blocks,
) -> Inputs:
    """Return the gradients with respect to `inputs`, from those of the output and of the log sums.

    The gradient of the queries is with respect to the queries before their multiplication by
    `scale`. The gradients of the segments, and of tables not in `wanted`, are None.

    If sequences are split among devices, all arrays but the tables are slices. The gradients of the
    tables are then those of the device's queries.
    """
    if blocks.slices == 1:
        return _backward(
            *(inputs, out_BNHP, d_out_BNHP, log_sum_BN1P, d_log_sum_BN1P),
            scale=scale,
            wanted=wanted,
            blocks=blocks,
        )
    outs = (out_BNHP, d_out_BNHP, log_sum_BN1P, d_log_sum_BN1P)
    found = _backward(
        for_device(inputs, blocks),
        *jax.tree.map(lambda x: dealt(x, blocks), outs),
        scale=scale,
        wanted=wanted,
        blocks=blocks,
    )
    decay = found.decay_BN2P
    return found._replace(
        q_BNHP=returned(found.q_BNHP, blocks),
        k_BNHP=summed(found.k_BNHP, blocks, inputs.k_BNHP.dtype),
        v_BNHP=summed(found.v_BNHP, blocks, inputs.v_BNHP.dtype),
        decay_BN2P=None if decay is None else summed(decay, blocks, decay.dtype),
    )


def _backward(
    inputs: Inputs,
    out_BNHP: jax.Array,
    d_out_BNHP: jax.Array,
    log_sum_BN1P: jax.Array,
    d_log_sum_BN1P: jax.Array | None,
    *,
    scale: float,
    wanted: Wanted,
    blocks: Blocks,
) -> Inputs:
    """Return `backward` of whole sequences, or of a device's queries and all keys.

    In the latter case, the gradients of keys, values and decays are float32, and arbitrary after
    the device's last query.
    """
    q_BNHP, k_BNHP, v_BNHP, tables, segments_B1P, decay_BN2P = inputs
    batch, heads, width, length = q_BNHP.shape
    operands = Operands(blocks, "by_key")
    by_query, by_key, row = operands.by_query(width), operands.by_key(width), operands.by_query(1)
    of_values = v_BNHP.shape[2]
    of_v, of_d_out = operands.by_key(of_values), operands.by_query(of_values)
    # The rows of decays use the VMEM that a second buffer of dv would need.
    of_d_v = of_v if decay_BN2P is None else operands.by_key(of_values, SELDOM)
    products_BNHP = out_BNHP.astype(jnp.float32) * d_out_BNHP.astype(jnp.float32)
    means_BN1P = jnp.sum(products_BNHP, axis=2, keepdims=True)
    if d_log_sum_BN1P is not None:
        means_BN1P = means_BN1P - d_log_sum_BN1P / LN_2
    near = None if tables is None else NearTables.of(tables, blocks)
    bias, of_bias = operands.bias(tables, near)
    # The tables near the diagonal use the VMEM that a second buffer of k would need.
    of_k = by_key if near is None else operands.by_key(width, SELDOM)
    segments, of_segments = operands.segments(segments_B1P)
    decay, of_decay = operands.decay(decay_BN2P, k_BNHP.dtype, SELDOM)
    sizes = sizes_of_sums(tables, wanted, k_BNHP.shape[3])
    *ends, rows = itertools.accumulate(sizes.values(), initial=0)
    starts = dict(zip(sizes, ends, strict=True))
    groups = batch // blocks.batch
    sums_shape = (groups, heads, rows, 1, LANES)
    near_shape = None
    if near is not None and (wanted.segment or wanted.rate):
        _, strips, _, *register = near.copies_NCTSW.shape
        near_shape = (groups, heads, strips, SUMS, *register)
    sums_of_d_q = q_BNHP.shape if decay is None else (batch, heads, width + SUBLANES, length)
    row_shape = jax.ShapeDtypeStruct((batch, heads, 1, k_BNHP.shape[3]), jnp.float32)
    summed_dtype = k_BNHP.dtype if blocks.slices == 1 else jnp.float32
    outs = operands.call(
        functools.partial(_kernel, blocks=blocks, scale=scale, starts=starts),
        Ins(*(q_BNHP, k_BNHP, v_BNHP, d_out_BNHP, log_sum_BN1P, means_BN1P), segments, bias, decay),
        Ins(*(by_query, of_k, of_v, of_d_out, row, row), of_segments, of_bias, of_decay),
        out_shape=Outs(
            jax.ShapeDtypeStruct(q_BNHP.shape, q_BNHP.dtype),
            jax.ShapeDtypeStruct(k_BNHP.shape, summed_dtype),
            jax.ShapeDtypeStruct(v_BNHP.shape, summed_dtype),
            jax.ShapeDtypeStruct(sums_of_d_q, jnp.float32),
            jax.ShapeDtypeStruct(sums_shape, jnp.float32) if starts else None,
            jax.ShapeDtypeStruct(near_shape, jnp.float32) if near_shape else None,
            None if decay is None else row_shape,
        ),
        out_specs=Outs(
            operands.by_diagonal(width, SELDOM),
            operands.by_key(width, SELDOM),
            of_d_v,
            pl.BlockSpec(memory_space=pl.ANY),
            operands.of_head(sums_shape) if starts else None,
            operands.near_sums(near_shape) if near_shape else None,
            None if decay is None else operands.by_key(1, SELDOM),
        ),
        scratch=_scratch(blocks, of_values, sums_of_d_q[2], bias is not None, wanted, sizes),
        name=blocks.kernel_name("backward"),
    )
    d_tables = None
    if tables is not None:
        sums_GNXR = outs.sums[:, :, :, 0] if starts else jnp.zeros((1, heads, 0, LANES))
        found = to_tables(tables, sums_GNXR, starts)
        if near is not None and near_shape:
            found = with_near(found, near, jnp.sum(outs.near, axis=0), tables)
        d_tables = jax.tree.map(lambda x: LN_2 * x, found)
    d_decay = None
    if decay is not None:
        # The factors ln 2 and log2(e) of the base cancel. The forward kernel does not add the decay
        # of the query to its logits: only the deviation from the exact sum is subtracted.
        of_queries = outs.d_q_sums[:, :, width : width + 1]
        if d_log_sum_BN1P is not None:
            of_queries = of_queries - d_log_sum_BN1P / LN_2
        if blocks.slices > 1:
            of_queries = placed(of_queries, blocks)
        d_part_BN1P = of_queries - outs.d_s
        d_decay = jnp.pad(d_part_BN1P, ((0, 0), (0, 0), (1, 0), (0, 0)))
    return Inputs(outs.d_q, outs.d_k, outs.d_v, d_tables, None, d_decay)


def _scratch(
    blocks: Blocks,
    width: int,
    rows_of_d_q: int,
    biased: bool,
    wanted: Wanted,
    sizes: dict[str, int],
) -> Scratch:
    with_sums, block = (
        pltpu.VMEM((blocks.batch, rows, blocks.tokens), jnp.float32)
        for rows in (rows_of_d_q, width)
    )
    tile = pltpu.VMEM((blocks.tokens, blocks.tokens), jnp.float32)
    rows = rows_in_scratch(sizes)
    return Scratch(
        d_q=with_sums,
        d_k=with_sums,
        d_v=block,
        copied=pltpu.SemaphoreType.DMA((2, blocks.batch)),
        tile=tile if biased else None,
        d_tile=tile if wanted.any else None,
        sums=pltpu.VMEM((rows, SUBLANES, LANES), jnp.float32) if rows else None,
        skewed=pltpu.VMEM((LANES, 2 * blocks.tokens), jnp.float32) if wanted.slab else None,
    )


def _ends_of_column(key_X: Ref, index: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return whether a tile is the first, and whether it is the last, of its key block."""
    key_block = key_X[index]
    before = key_X[jnp.maximum(index - 1, 0)]
    after = key_X[jnp.where(last, index, index + 1)]
    return (index == 0) | (before != key_block), last | (after != key_block)


def _clear(ref: Ref) -> None:
    ref[...] = jnp.zeros_like(ref)


def _kernel(
    query_X: Ref,
    key_X: Ref,
    own_X: Ref,
    ins: Ins,
    outs: Outs,
    scratch: Scratch,
    *,
    unroll: bool,
    blocks: Blocks,
    scale: float,
    starts: dict[str, int],
) -> None:
    q, k, v, d_out, log_sum, mean, segments, bias, decay = ins
    d_q, d_k_sum, d_v_sum, copied, tile, d_tile, in_scratch, skewed = scratch
    sums = None
    if outs.sums is not None:
        near = None if outs.near is None else outs.near.at[0, 0]
        sums = Sums(outs.sums.at[0], starts, in_scratch, near, skewed)
    group, head, index = (pl.program_id(axis) for axis in range(3))
    query_block, key_block = query_X[index], key_X[index]
    diagonal = query_block == key_block
    last = index == pl.num_programs(2) - 1
    batch, width, block, rows = q.shape[0], q.shape[2], q.shape[3], d_q.shape[1]
    with_rows = with_ones if decay is not None else lambda x: x

    def of_d_q(b: Any) -> Ref:
        own_block = query_block if blocks.slices == 1 else own_X[index]
        start = pl.multiple_of(own_block * block, block)
        return outs.d_q_sums.at[group * batch + b, head, :, pl.ds(start, block)]

    def reading(b: Any) -> Any:
        return pltpu.make_async_copy(of_d_q(b), d_q.at[b], copied.at[0, b])

    def writing(b: Any) -> Any:
        return pltpu.make_async_copy(d_q.at[b], of_d_q(b), copied.at[1, b])

    def for_all(run: Any) -> None:
        jax.lax.fori_loop(0, batch, lambda b, _: run(b), None)

    @pl.when(index > 0)
    @jax.named_scope("wait.later_tile")
    def _() -> None:  # This tile may read the dq that the previous tile writes.
        for_all(lambda b: writing(b).wait())

    first_key = blocks.first_key(query_block)

    @pl.when(key_block > first_key)
    @jax.named_scope("fetch.later_key")
    def _() -> None:
        for_all(lambda b: reading(b).start())

    @pl.when(key_block == first_key)
    @jax.named_scope("clear.first_key")
    def _() -> None:
        _clear(d_q)

    if blocks.slices > 1:
        first_of_key, last_of_key = _ends_of_column(key_X, index, last)

        @pl.when(first_of_key)
        @jax.named_scope("clear.first_query")
        def _() -> None:
            _clear(d_k_sum)
            _clear(d_v_sum)

    if outs.near is not None:
        pl.when(diagonal)(jax.named_scope("clear.diagonal")(functools.partial(_clear, outs.near)))

    if sums is not None:
        pl.when(index == 0)(jax.named_scope("clear.first_tile")(sums.clear))

    def attend(b: Any, place: Place, first: bool) -> None:
        # Wait before the computation starts, because the compiler schedules the computation best as
        # one piece. The copy started at the beginning of this tile.
        pl.when(key_block > first_key)(lambda: reading(b).wait())
        for piece in pieces(blocks, place):
            keys, queries = piece.keys, piece.queries
            s = logits(q, k, segments, decay, b, keys, queries)
            if tile is not None:
                s = s + tile[keys, queries]
            s = piece.masked(s)
            of_sum = shifted(log_sum[b, 0, :, queries], decay, b, query_block, key_block)
            p = jnp.exp2(s - of_sum)
            d_p = product(v[b, 0, :, keys], d_out[b, 0, :, queries], KEYS_BY_QUERIES)
            d_s = p * (d_p - mean[b, 0, :, queries])
            d_s_rounded = d_s.astype(k.dtype)
            d_v = product(d_out[b, 0, :, queries], p.astype(k.dtype), OVER_QUERIES)
            d_k = product(with_rows(q[b, 0, :, queries]), d_s_rounded, OVER_QUERIES)[:rows]
            # Unless a device lacks queries, the tile on the diagonal is the first of its key block.
            if piece.causal and blocks.slices == 1:
                d_v_sum[b, :, keys], d_k_sum[b, :, keys] = d_v, d_k
            else:
                d_v_sum[b, :, keys] += d_v
                d_k_sum[b, :, keys] += d_k
            d_q[b, :, queries] += product(with_rows(k[b, 0, :, keys]), d_s_rounded)[:rows]
            if d_tile is not None and first:
                d_tile[keys, queries] = d_s
            elif d_tile is not None:
                d_tile[keys, queries] += d_s
        writing(b).start()

    if bias is not None:
        build(bias, tile, blocks.key_strips(query_block, key_block), unroll)
    for_each_sequence(blocks, query_block, key_block, attend, apart=d_tile is not None)
    if bias is not None and sums is not None:
        add_gradient(bias, sums, d_tile, query_block, key_block, blocks, unroll)
        pl.when(last)(jax.named_scope("finish.last_tile")(sums.finish))

    @pl.when(diagonal)
    @jax.named_scope("finish.diagonal")
    def _() -> None:
        outs.d_q[:, 0] = (LN_2 * scale * d_q[:, :width]).astype(outs.d_q.dtype)

    if blocks.slices == 1:
        last_of_key = query_block == blocks.last_query(key_block)

    @pl.when(last_of_key)
    @jax.named_scope("finish.last_query")
    def _() -> None:
        outs.d_k[:, 0] = (LN_2 * d_k_sum[:, :width]).astype(outs.d_k.dtype)
        if outs.d_s is not None:
            outs.d_s[:, 0] = d_k_sum[:, width : width + 1]
        outs.d_v[:, 0] = d_v_sum[...].astype(outs.d_v.dtype)

    @pl.when(last)
    @jax.named_scope("wait.last_tile")
    def _() -> None:
        for_all(lambda b: writing(b).wait())
