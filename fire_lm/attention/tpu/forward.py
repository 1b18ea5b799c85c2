"""The forward kernel: softmax attention over tiles, with its running maximum in base 2.

For each head and tile, the bias is built once; then one sequence after the other,

    s = k q + bias ,   m' = max(m, max s) ,   l' = 2^(m - m') l + sum 2^(s - m')
    o' = 2^(m - m') o + v 2^(s - m')

(Milakov and Gimelshein, 2018; Dao et al., 2022), with keys along the sublanes and queries along
the lanes: m and l are rows, and their sums and maxima over keys cross no lanes.

Shapes: N heads, B batch, H head dim, P positions (padded).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.bias_tile import MASKED, BiasRefs, build, either
from fire_lm.attention.tpu.operands import Operands
from fire_lm.attention.tpu.schedule import Blocks
from fire_lm.attention.tpu.tables import Tables

Ref = Any
KEYS_BY_QUERIES = (((0,), (0,)), ((), ()))  # [H, keys], [H, queries]: both contract their first


def forward(
    q_BNHP: jax.Array,
    k_BNHP: jax.Array,
    v_BNHP: jax.Array,
    bias: Tables | None,
    segments_B1P: jax.Array | None,
    blocks: Blocks,
) -> tuple[jax.Array, jax.Array]:
    """The output `[B, N, H, P]`, and log2 of the sum of 2^logit, `[B, N, 1, P]` float32."""
    batch, heads, width, length = q_BNHP.shape
    operands = Operands(blocks, "by_query")
    by_query = operands.by_query(width)
    ins: list[Any] = [q_BNHP, k_BNHP, v_BNHP]
    specs = [by_query, operands.by_key(width), operands.by_key(width)]
    if segments_B1P is not None:
        ins += [segments_B1P, segments_B1P]
        specs += operands.segments()
    tables = 0
    if bias is not None:
        arrays, blocks_of = operands.bias(bias)
        ins, specs, tables = ins + arrays, specs + blocks_of, len(arrays)
    rows = (blocks.batch, 1, blocks.tokens)
    scratch = [pltpu.VMEM(rows, jnp.float32), pltpu.VMEM(rows, jnp.float32)]
    scratch.append(pltpu.VMEM((blocks.batch, width, blocks.tokens), jnp.float32))
    if bias is not None:
        scratch.append(pltpu.VMEM((blocks.tokens, blocks.tokens), jnp.float32))
    return operands.call(
        functools.partial(_kernel, packed=segments_B1P is not None, tables=tables),
        ins,
        specs,
        out_shape=[
            jax.ShapeDtypeStruct(q_BNHP.shape, q_BNHP.dtype),
            jax.ShapeDtypeStruct((batch, heads, 1, length), jnp.float32),
        ],
        out_specs=[by_query, operands.by_query(1)],
        scratch=scratch,
        name="fire_lm_attention_forward",
    )


def _kernel(query_X: Ref, key_X: Ref, *refs: Ref, packed: bool, tables: int) -> None:
    rest = iter(refs)
    q, k, v = (next(rest) for _ in range(3))
    segments = [next(rest), next(rest)] if packed else None
    bias = BiasRefs(*(next(rest) for _ in range(tables))) if tables else None
    out, log_sum, largest, total, mean = (next(rest) for _ in range(5))
    tile = next(rest) if bias else None
    index = pl.program_id(2)
    query_block, key_block = query_X[index], key_X[index]
    diagonal = query_block == key_block

    @pl.when(key_block == 0)
    @jax.named_scope("clear.first_key")
    def _() -> None:
        largest[...] = jnp.full_like(largest, MASKED)
        total[...] = jnp.zeros_like(total)
        mean[...] = jnp.zeros_like(mean)

    def attend(b: jax.Array, masked: bool) -> None:
        s = logits(q.at[b, 0], k.at[b, 0], segments and [ref.at[b] for ref in segments])
        if tile is not None:
            s = s + tile[...]
        if masked:
            s = causal(s)
        m = jnp.maximum(largest[b], jnp.max(s, axis=0, keepdims=True))
        p = jnp.exp2(s - m)
        rescale = jnp.exp2(largest[b] - m)
        largest[b] = m
        total[b] = rescale * total[b] + jnp.sum(p, axis=0, keepdims=True)
        mean[b] = rescale * mean[b] + product(v[b, 0], p.astype(v.dtype))

    if bias is not None:
        build(bias, tile, diagonal)
    for_each_sequence(q.shape[0], diagonal, attend)

    @pl.when(diagonal)
    @jax.named_scope("finish.diagonal")
    def _() -> None:
        def finish(b: jax.Array, _: None) -> None:
            out[b, 0] = (mean[b] / total[b]).astype(out.dtype)
            log_sum[b, 0] = largest[b] + jnp.log2(total[b])

        jax.lax.fori_loop(0, q.shape[0], finish, None)


def for_each_sequence(batch: int, diagonal: jax.Array, run: Callable[[Any, bool], None]) -> None:
    """`run(b, masked)` for all sequences of a block."""

    def loop(masked: bool) -> None:
        jax.lax.fori_loop(0, batch, lambda b, _: run(b, masked), None)

    either("sequences", diagonal, loop)


def logits(q: Ref, k: Ref, segments: list[Ref] | None) -> jax.Array:
    """`[keys, queries]`, float32; masked between segments."""
    s = product(k[...], q[...], KEYS_BY_QUERIES)
    if segments is None:
        return s
    query, key = (ref[...] for ref in segments)
    # A row of keys to a column: 32 bits wide, and whole registers at a time.
    key = jnp.broadcast_to(key, (8, key.shape[1])).T[:, :1]
    return jnp.where(key == query, s, MASKED)


def causal(s: jax.Array) -> jax.Array:
    """The logits of a tile on the diagonal, without those of keys after the query."""
    key, query = (jax.lax.broadcasted_iota(jnp.int32, s.shape, axis) for axis in (0, 1))
    return jnp.where(key <= query, s, MASKED)


def product(a: jax.Array, b: jax.Array, contract: Any = (((1,), (0,)), ((), ()))) -> jax.Array:
    """float32, of bfloat16 operands or of whole float32 ones."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        a, b, contract, precision=precision, preferred_element_type=jnp.float32
    )
