"""The forward kernel: softmax attention over tiles, in base 2, with a running maximum.

For each head and tile, the kernel builds the bias once. It then processes one sequence at a time
and computes

    s = k q + bias ,   m' = max(m, max s) ,   l' = 2^(m - m') l + sum 2^(s - m')
    o' = 2^(m - m') o + v 2^(s - m')

(Milakov and Gimelshein, 2018; Dao et al., 2022). Keys run along the sublanes and queries along the
lanes, so m and l are rows, and sums and maxima over keys move no data between lanes.

Shapes: N heads, B batch, H head dim, P tokens (padded).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.bias_tile import build
from fire_lm.attention.tpu.dealt import dealt, gathered, returned
from fire_lm.attention.tpu.decays import KeyDecays, with_ones
from fire_lm.attention.tpu.devices import Inputs
from fire_lm.attention.tpu.near_tables import NearTables
from fire_lm.attention.tpu.operands import Operands, Sides
from fire_lm.attention.tpu.parts import BiasRefs, Ref
from fire_lm.attention.tpu.pieces import MASKED, Place, pieces, places
from fire_lm.attention.tpu.schedule import Blocks

KEYS_BY_QUERIES = (((0,), (0,)), ((), ()))  # [H, keys] and [H, queries]: contracts H


class Ins(NamedTuple):
    """The inputs of the forward kernel: arrays, block specs, or references inside the kernel.

    Attributes:
      q, k, v: The queries, keys and values, `[B, N, H, P]`; values may have a smaller H.
      segments: The documents of the queries and keys, or None.
      bias: The tables of the bias, or None.
      decay: The decays of the keys, or None.
    """

    q: Any
    k: Any
    v: Any
    segments: Sides | None
    bias: BiasRefs | None
    decay: KeyDecays | None


class Outs(NamedTuple):
    """The outputs of the forward kernel: arrays, block specs, or references inside the kernel.

    Attributes:
      out: The output of the attention, `[B, N, H, P]`.
      log_sum: The log2 of each query's sum of 2^logit, float32 `[B, N, 1, P]`.
    """

    out: Any
    log_sum: Any


class Scratch(NamedTuple):
    """The scratch memory of the forward kernel.

    Attributes:
      largest, total, mean: The running maximum m, sum l and output o of each sequence.
      tile: The bias of the current tile, or None.
    """

    largest: Any
    total: Any
    mean: Any
    tile: Any | None


def forward(inputs: Inputs, blocks: Blocks) -> Outs:
    """Return the outputs of the forward kernel for `inputs`.

    If sequences are split among devices, all inputs but the tables are slices.
    """
    if blocks.slices > 1:
        outs = _forward(for_device(inputs, blocks), blocks)
        return Outs(*(returned(x, blocks) for x in outs))
    return _forward(inputs, blocks)


def for_device(inputs: Inputs, blocks: Blocks) -> Inputs:
    """Return the queries that a device computes, and all keys, from this device's slices."""
    queries = dealt(inputs.q_BNHP, blocks)
    others = inputs._replace(q_BNHP=None, tables=None)
    whole = jax.tree.map(lambda x: gathered(x, blocks), others)
    return whole._replace(q_BNHP=queries, tables=inputs.tables)


def _forward(inputs: Inputs, blocks: Blocks) -> Outs:
    batch, heads, width, length = inputs.q_BNHP.shape
    operands = Operands(blocks, "by_query")
    by_query, by_key = operands.by_query(width), operands.by_key(width)
    of_values = inputs.v_BNHP.shape[2]
    tables = inputs.tables
    bias, of_bias = operands.bias(tables, None if tables is None else NearTables.of(tables, blocks))
    segments, of_segments = operands.segments(inputs.segments_B1P)
    decay, of_decay = operands.decay(inputs.decay_BN2P, inputs.k_BNHP.dtype)
    rows = pltpu.VMEM((blocks.batch, 1, blocks.tokens), jnp.float32)
    tile = pltpu.VMEM((blocks.tokens, blocks.tokens), jnp.float32)
    return operands.call(
        functools.partial(_kernel, blocks=blocks),
        Ins(inputs.q_BNHP, inputs.k_BNHP, inputs.v_BNHP, segments, bias, decay),
        Ins(by_query, by_key, operands.by_key(of_values), of_segments, of_bias, of_decay),
        out_shape=Outs(
            jax.ShapeDtypeStruct((batch, heads, of_values, length), inputs.q_BNHP.dtype),
            jax.ShapeDtypeStruct((batch, heads, 1, length), jnp.float32),
        ),
        out_specs=Outs(operands.by_query(of_values), operands.by_query(1)),
        scratch=Scratch(
            largest=rows,
            total=rows,
            mean=pltpu.VMEM((blocks.batch, of_values, blocks.tokens), jnp.float32),
            tile=None if bias is None else tile,
        ),
        name=blocks.kernel_name("forward"),
    )


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
) -> None:
    del own_X
    largest, total, mean, tile = scratch
    index = pl.program_id(2)
    query_block, key_block = query_X[index], key_X[index]
    diagonal = query_block == key_block
    batch = ins.q.shape[0]

    @pl.when(key_block == blocks.first_key(query_block))
    @jax.named_scope("clear.first_key")
    def _() -> None:
        largest[...] = jnp.full_like(largest, MASKED)
        total[...] = jnp.zeros_like(total)
        mean[...] = jnp.zeros_like(mean)

    def attend(b: jax.Array, place: Place, _: bool) -> None:
        parts = []
        m = before = shifted(largest[b], ins.decay, b, query_block, key_block)
        for piece in pieces(blocks, place):
            keys, queries = piece.keys, piece.queries
            s = logits(ins.q, ins.k, ins.segments, ins.decay, b, keys, queries)
            if tile is not None:
                s = s + tile[keys, queries]
            s = piece.masked(s)
            m = _from(queries, m, jnp.maximum, jnp.max(s, axis=0, keepdims=True))
            parts.append((keys, queries, s))
        rescale = jnp.exp2(before - m)
        sums, values = rescale * total[b], rescale * mean[b]
        for keys, queries, s in parts:
            p = jnp.exp2(s - m[:, queries])
            sums = _from(queries, sums, jnp.add, jnp.sum(p, axis=0, keepdims=True))
            found = product(ins.v[b, 0, :, keys], p.astype(ins.v.dtype))
            values = _from(queries, values, jnp.add, found)
        m = shifted(m, ins.decay, b, key_block, query_block)
        largest[b], total[b], mean[b] = m, sums, values

    if ins.bias is not None:
        build(ins.bias, tile, blocks.key_strips(query_block, key_block), unroll)
    for_each_sequence(blocks, query_block, key_block, attend)

    @pl.when(diagonal)
    @jax.named_scope("finish.diagonal")
    def _() -> None:
        def finish(b: jax.Array, _: None) -> None:
            outs.out[b, 0] = (mean[b] / total[b]).astype(outs.out.dtype)
            outs.log_sum[b, 0] = largest[b] + jnp.log2(total[b])

        jax.lax.fori_loop(0, batch, finish, None)


def for_each_sequence(
    blocks: Blocks,
    query_block: jax.Array,
    key_block: jax.Array,
    run: Callable[[Any, Place, bool], None],
    *,
    apart: bool = False,
) -> None:
    """Call `run(b, place, first)` for each sequence b of a block.

    Args:
      query_block, key_block: The tile, which is at `place`.
      run: The function to call; its arguments `place` and `first` are static.
      apart: Whether the first sequence is processed by separate code, for which `first` is True.
    """
    for place in places(blocks):

        @pl.when(place.holds(query_block, key_block))
        def _(place: Place = place) -> None:
            if apart:
                jax.named_scope(f"first_sequence.{place.name}")(run)(0, place, True)
            if apart and blocks.batch == 1:
                return
            name = "later_sequences" if apart else "sequences"
            with jax.named_scope(f"{name}.{place.name}"):
                jax.lax.fori_loop(int(apart), blocks.batch, lambda b, _: run(b, place, False), None)


def _from(queries: slice, x: jax.Array, join: Callable[..., jax.Array], y: jax.Array) -> jax.Array:
    """Return `x` with its columns `queries` replaced by `join(x[:, queries], y)`."""
    columns = [x[:, : queries.start], join(x[:, queries], y), x[:, queries.stop :]]
    columns = [part for part in columns if part.shape[1]]
    return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)


def logits(
    q: Ref,
    k: Ref,
    segments: Sides | None,
    decay: KeyDecays | None,
    b: jax.Array,
    keys: slice,
    queries: slice,
) -> jax.Array:
    """Return the logits of sequence b, float32 `[keys, queries]`, with other documents masked.

    Their decays are counted from the first token of the key's block (see `shifted`).
    """
    key, query = k[b, 0, :, keys], q[b, 0, :, queries]
    if decay is not None:
        key, query = jnp.concatenate([key, decay.rows[b, 0, :, keys]]), with_ones(query)
    s = product(key, query, KEYS_BY_QUERIES)
    if segments is None:
        return s
    query, key = segments.query[b, :, queries], segments.key[b, :, keys]
    return jnp.where(_column(key) == query, s, MASKED)


def shifted(
    x: jax.Array, decay: KeyDecays | None, b: jax.Array, query_block: Any, key_block: Any
) -> jax.Array:
    """Return `x` minus the log2 of the decay between two blocks of sequence b, or `x`.

    With a value for each query of the first block, counted from the first token of that block,
    the result is counted from the first token of the second block.
    """
    return x if decay is None else x - decay.between_blocks(b, query_block, key_block)


def _column(row: jax.Array) -> jax.Array:
    """Turn a row of keys into a column by transposing complete registers of 32-bit values."""
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


def product(a: jax.Array, b: jax.Array, contract: Any = (((1,), (0,)), ((), ()))) -> jax.Array:
    """Return the float32 product of `a` and `b`, at full precision if they are float32.

    By default, this is the matrix product; `contract` specifies other dimension numbers.
    """
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        a, b, contract, precision=precision, preferred_element_type=jnp.float32
    )
