"""The backward kernel: one pass over the tiles for the gradients to q, k, v and the bias's tables.

For each head and tile the bias is built again, once; then one sequence after the other, with
p = 2^(s - log_sum), and the row sums D = sum o do,

    dv += do p^T ,   ds = p (v do - D) ,   dk += q ds^T ,   dq += k ds

(Dao et al., 2022). Tiles go down the columns of keys, so that dk and dv stay on the chip; dq of a
block comes back for each column, and is added to where it lies in HBM, always in the same order. ds
is summed over the sequences first, and the bias's part done once (`bias_tile.add_gradient`). The
derivative of 2^s has a factor ln 2, which is left to the end.

Shapes: N heads, B batch, G groups of it, E examples whose positions differ (or 1), H head dim, P
places (padded), K kinks, M slabs, Q chunks of R = 128 places or distances, X rows of all sums.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.bias_tile import BY_SEGMENT, BiasRefs, Sums, add_gradient, build
from fire_lm.attention.tpu.forward import (
    KEYS_BY_QUERIES,
    causal,
    for_each_sequence,
    logits,
    product,
)
from fire_lm.attention.tpu.operands import Operands
from fire_lm.attention.tpu.schedule import LANES, Blocks
from fire_lm.attention.tpu.tables import Tables

Ref = Any
OVER_QUERIES = (((1,), (1,)), ((), ()))  # [H, queries], [keys, queries]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Wanted:
    """The bias tables whose gradients are needed; `segment` stands for slope and offset."""

    segment: bool = False
    row: bool = False
    gain: bool = False
    slab: bool = False

    @classmethod
    def of(cls, tables: Any) -> Wanted:
        """`tables`: of `CustomVJPPrimal`s, or None."""
        if tables is None:
            return cls()
        return cls(
            segment=tables.slope_KN.perturbed or tables.offset_KN.perturbed,
            row=tables.row_EP.perturbed,
            gain=tables.gain_EP.perturbed,
            slab=tables.slab_MP.perturbed,
        )

    @property
    def any(self) -> bool:
        return any(dataclasses.astuple(self))


def backward(
    q_BNHP: jax.Array,
    k_BNHP: jax.Array,
    v_BNHP: jax.Array,
    out_BNHP: jax.Array,
    d_out_BNHP: jax.Array,
    log_sum_BN1P: jax.Array,
    bias: Tables | None,
    segments_B1P: jax.Array | None,
    wanted: Wanted,
    blocks: Blocks,
) -> tuple[jax.Array, jax.Array, jax.Array, Tables | None]:
    """The gradients to queries, keys, values and tables."""
    batch, heads, width, length = q_BNHP.shape
    operands = Operands(blocks, "by_key")
    by_query, by_key, row = operands.by_query(width), operands.by_key(width), operands.by_query(1)
    products_BNHP = out_BNHP.astype(jnp.float32) * d_out_BNHP.astype(jnp.float32)
    means_BN1P = jnp.sum(products_BNHP, axis=2, keepdims=True)
    ins: list[Any] = [q_BNHP, k_BNHP, v_BNHP, d_out_BNHP, log_sum_BN1P, means_BN1P]
    specs = [by_query, by_key, by_key, by_query, row, row]
    if segments_B1P is not None:
        ins += [segments_B1P, segments_B1P]
        specs += operands.segments()
    tables = 0
    if bias is not None:
        arrays, blocks_of = operands.bias(bias)
        ins, specs, tables = ins + arrays, specs + blocks_of, len(arrays)
    out_shape = [
        jax.ShapeDtypeStruct(q_BNHP.shape, jnp.float32),
        jax.ShapeDtypeStruct(k_BNHP.shape, k_BNHP.dtype),
        jax.ShapeDtypeStruct(v_BNHP.shape, v_BNHP.dtype),
    ]
    out_specs = [pl.BlockSpec(memory_space=pl.ANY), by_key, by_key]
    sizes = _sizes(bias, wanted, length)
    *ends, rows = itertools.accumulate(sizes.values(), initial=0)
    starts = dict(zip(sizes, ends, strict=True))
    if starts:
        shape = (batch // blocks.batch, heads, rows, 1, LANES)
        out_shape.append(jax.ShapeDtypeStruct(shape, jnp.float32))
        out_specs.append(operands.of_head(shape))
    block = (blocks.batch, width, blocks.tokens)
    scratch: list[Any] = [pltpu.VMEM(block, jnp.float32) for _ in range(3)]
    scratch += [pltpu.SemaphoreType.DMA((2, blocks.batch))]
    if bias is not None:
        scratch.append(pltpu.VMEM((blocks.tokens, blocks.tokens), jnp.float32))
    if wanted.any:
        scratch.append(pltpu.VMEM((blocks.tokens, blocks.tokens), jnp.float32))
    if wanted.segment:
        by_segment = sum(size for name, size in sizes.items() if name in BY_SEGMENT)
        scratch.append(pltpu.VMEM((by_segment, 8, LANES), jnp.float32))
    if wanted.slab:
        scratch.append(pltpu.VMEM((LANES, 2 * blocks.tokens), jnp.float32))
    d_q, d_k, d_v, *found = operands.call(
        functools.partial(
            _kernel,
            blocks_of_queries=length // blocks.tokens,
            packed=segments_B1P is not None,
            tables=tables,
            starts=starts,
        ),
        ins,
        specs,
        out_shape=out_shape,
        out_specs=out_specs,
        scratch=scratch,
        name="fire_lm_attention_backward",
    )
    ln_2 = math.log(2)
    d_tables = None
    if bias is not None:
        sums_GNXR = found[0][:, :, :, 0] if starts else jnp.zeros((1, heads, 0, LANES))
        d_tables = jax.tree.map(lambda x: ln_2 * x, _to_tables(bias, sums_GNXR, starts))
    d_k = (d_k.astype(jnp.float32) * ln_2).astype(k_BNHP.dtype)
    return (d_q * ln_2).astype(q_BNHP.dtype), d_k, d_v, d_tables


def _sizes(bias: Tables | None, wanted: Wanted, length: int) -> dict[str, int]:
    """Rows of the sums that are wanted, see `bias_tile.Sums`."""
    if bias is None:
        return {}
    kinks, chunks = bias.kink_K.size, length // LANES
    sizes: dict[str, int] = {}
    if wanted.segment:
        sizes |= {"offset": kinks + 1, "slope": kinks + 1}
        sizes |= {"kink_offset": kinks, "kink_slope": kinks} if kinks else {}
    return sizes | {name: chunks for name in ("row", "gain", "slab") if getattr(wanted, name)}


def _to_tables(tables: Tables, sums_GNXR: jax.Array, starts: dict[str, int]) -> Tables:
    """The cotangent of `tables`, zeros where it was not wanted."""
    found = {name: jnp.zeros_like(getattr(tables, name)) for name in Tables._fields}
    sums_NXR = jnp.sum(sums_GNXR, axis=0)
    chunks, kinks = tables.row_EP.shape[1] // LANES, tables.kink_K.size

    def sum_of(name: str, size: int, sums: jax.Array = sums_NXR) -> jax.Array:
        return jax.lax.slice_in_dim(sums, starts[name], starts[name] + size, axis=-2)

    for name in ("row", "gain"):
        if name in starts:
            d_GP = jnp.sum(sum_of(name, chunks, sums_GNXR), axis=1).reshape(-1, chunks * LANES)
            shared = tables.row_EP.shape[0] == 1
            found[f"{name}_EP"] = jnp.sum(d_GP, axis=0, keepdims=True) if shared else d_GP
    if "slab" in starts:
        d_slab_NP = sum_of("slab", chunks).reshape(-1, chunks * LANES)
        if tables.slab_MP.shape[0] == 1:
            d_slab_NP = jnp.sum(d_slab_NP, axis=0, keepdims=True)
        found["slab_MP"] = d_slab_NP
    for name in ("offset", "slope"):
        if name not in starts:
            continue
        d_NK = jnp.sum(sum_of(name, kinks + 1), axis=2)
        if kinks:
            beyond_NK = jnp.sum(sum_of(f"kink_{name}", kinks), axis=2)
            # What is beyond kink k is not of segment k, but of k + 1 if not beyond the next.
            d_NK = d_NK - jnp.pad(beyond_NK, ((0, 0), (0, 1)))
            d_NK = d_NK + jnp.pad(beyond_NK, ((0, 0), (1, 0)))
        found[f"{name}_KN"] = d_NK.T
    return Tables(**found)


def _kernel(
    query_X: Ref,
    key_X: Ref,
    *refs: Ref,
    blocks_of_queries: int,
    packed: bool,
    tables: int,
    starts: dict[str, int],
) -> None:
    rest = iter(refs)
    q, k, v, d_out, log_sum, mean = (next(rest) for _ in range(6))
    segments = [next(rest), next(rest)] if packed else None
    bias = BiasRefs(*(next(rest) for _ in range(tables))) if tables else None
    d_q_hbm, d_k, d_v = (next(rest) for _ in range(3))
    sums_ref = next(rest).at[0] if starts else None
    d_q, d_k_sum, d_v_sum, copied = (next(rest) for _ in range(4))
    tile = next(rest) if bias else None
    d_tile = next(rest) if starts else None
    by_segment = next(rest) if "offset" in starts else None
    skewed = next(rest) if "slab" in starts else None
    sums = Sums(sums_ref, starts, by_segment, skewed) if starts else None
    group, head, index = (pl.program_id(axis) for axis in range(3))
    query_block, key_block = query_X[index], key_X[index]
    diagonal = query_block == key_block
    last = index == pl.num_programs(2) - 1
    batch, block = q.shape[0], q.shape[3]

    def of_d_q(b: Any) -> Ref:
        start = pl.multiple_of(query_block * block, block)
        return d_q_hbm.at[group * batch + b, head, :, pl.ds(start, block)]

    def reading(b: Any) -> Any:
        return pltpu.make_async_copy(of_d_q(b), d_q.at[b], copied.at[0, b])

    def writing(b: Any) -> Any:
        return pltpu.make_async_copy(d_q.at[b], of_d_q(b), copied.at[1, b])

    def for_all(run: Any) -> None:
        jax.lax.fori_loop(0, batch, lambda b, _: run(b), None)

    @pl.when(index > 0)
    @jax.named_scope("wait.later_tile")
    def _() -> None:  # the last tile's, also where this tile reads the same again
        for_all(lambda b: writing(b).wait())

    @pl.when(key_block > 0)
    @jax.named_scope("fetch.later_key")
    def _() -> None:
        for_all(lambda b: reading(b).start())

    @pl.when(key_block == 0)
    @jax.named_scope("clear.first_key")
    def _() -> None:
        d_q[...] = jnp.zeros_like(d_q)

    @pl.when(diagonal)
    @jax.named_scope("clear.diagonal")
    def _() -> None:
        d_k_sum[...] = jnp.zeros_like(d_k_sum)
        d_v_sum[...] = jnp.zeros_like(d_v_sum)

    if sums is not None and d_tile is not None:
        with jax.named_scope("clear_tile"):
            d_tile[...] = jnp.zeros_like(d_tile)

        pl.when(index == 0)(jax.named_scope("clear.first_tile")(sums.clear))

    def attend(b: jax.Array, masked: bool) -> None:
        # First, since what follows is best scheduled as one piece; it was asked for long before.
        pl.when(key_block > 0)(lambda: reading(b).wait())
        s = logits(q.at[b, 0], k.at[b, 0], segments and [ref.at[b] for ref in segments])
        if tile is not None:
            s = s + tile[...]
        if masked:
            s = causal(s)
        p = jnp.exp2(s - log_sum[b, 0])
        d_s = p * (product(v[b, 0], d_out[b, 0], KEYS_BY_QUERIES) - mean[b, 0])
        d_s_rounded = d_s.astype(k.dtype)
        d_v_sum[b] += product(d_out[b, 0], p.astype(k.dtype), OVER_QUERIES)
        d_k_sum[b] += product(q[b, 0], d_s_rounded, OVER_QUERIES)
        d_q[b] += product(k[b, 0], d_s_rounded)
        if d_tile is not None:
            d_tile[...] += d_s
        writing(b).start()

    if bias is not None:
        build(bias, tile, diagonal)
    for_each_sequence(batch, diagonal, attend)
    if bias is not None and sums is not None:
        add_gradient(bias, sums, d_tile, query_block, key_block)
        pl.when(last)(jax.named_scope("finish.last_tile")(sums.finish))

    @pl.when(query_block == blocks_of_queries - 1)
    @jax.named_scope("finish.last_query")
    def _() -> None:
        d_k[:, 0] = d_k_sum[...].astype(d_k.dtype)
        d_v[:, 0] = d_v_sum[...].astype(d_v.dtype)

    @pl.when(last)
    @jax.named_scope("wait.last_tile")
    def _() -> None:
        for_all(lambda b: writing(b).wait())
