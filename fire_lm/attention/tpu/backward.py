"""The backward kernel: one pass over the tiles for the gradients of q, k, v and the bias's tables.

For each head and tile, the kernel builds the bias again, once. It then takes one sequence after the
other and computes, with p = 2^(s - log_sum) and the row sums D = sum o do,

    dv += do p^T ,   ds = p (v do - D) ,   dk += q ds^T ,   dq += k ds

(Dao et al., 2022). The tiles run down the columns of keys, so that dk and dv stay on the chip. The
dq of a block of queries lies in HBM: each column reads it, adds to it and writes it back, always in
the same order. ds is summed over the sequences first, so that the tables' gradients are computed
only once per tile (`bias_tile.add_gradient`). The derivative of 2^s has a factor ln 2, which is
applied after the kernel.

Shapes: N heads, B batch, G groups of sequences, E examples whose positions differ (or 1), H head
dim, P places (padded), K kinks, M slabs, Q chunks of R = 128 places or distances, X rows of all
sums together.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.bias_tile import BY_SEGMENT, BiasRefs, Sums, add_gradient, build
from fire_lm.attention.tpu.devices import Inputs
from fire_lm.attention.tpu.forward import (
    KEYS_BY_QUERIES,
    causal,
    for_each_sequence,
    logits,
    product,
)
from fire_lm.attention.tpu.operands import Operands, Segments
from fire_lm.attention.tpu.schedule import LANES, Blocks
from fire_lm.attention.tpu.tables import Tables

Ref = Any
OVER_QUERIES = (((1,), (1,)), ((), ()))  # [H, queries] and [keys, queries]: contracts the queries


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Wanted:
    """The bias tables whose gradients are needed.

    The kinks need no gradient: the bias is continuous at them, so that its derivative with respect
    to a kink is 0 while the slopes and offsets are fixed.

    Attributes:
      segment: Whether the gradients of the slopes and offsets are needed.
      row, gain, slab: Whether the gradient of the table of this name is needed.
    """

    segment: bool = False
    row: bool = False
    gain: bool = False
    slab: bool = False

    @classmethod
    def of(cls, tables: Any) -> Wanted:
        """Return what JAX asks for, given `Tables` of `CustomVJPPrimal`s, or None for no bias."""
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

    def only(self, tables: Tables | None) -> Tables | None:
        """Return `tables` with None in place of each table whose gradient is not needed."""
        if tables is None:
            return None
        names = {
            "slope_KN": self.segment,
            "offset_KN": self.segment,
            "row_EP": self.row,
            "gain_EP": self.gain,
            "slab_MP": self.slab,
        }
        absent: dict[str, Any] = {name: None for name in Tables._fields if not names.get(name)}
        return tables._replace(**absent)


class Ins(NamedTuple):
    """The kernel's inputs.

    Attributes:
      q, k, v, d_out: The queries, keys, values and the gradient of the output, `[B, N, H, P]`.
      log_sum: The log2 of each query's sum of 2^logit, `[B, N, 1, P]`.
      mean: The row sums D, `[B, N, 1, P]`.
      segments: The documents of the tokens, or None.
      bias: The tables of the bias, or None.
    """

    q: Any
    k: Any
    v: Any
    d_out: Any
    log_sum: Any
    mean: Any
    segments: Segments | None
    bias: BiasRefs | None


class Outs(NamedTuple):
    """The gradients of q, k and v, and the sums of `bias_tile.Sums`, `[G, N, X, 1, R]`."""

    d_q: Any
    d_k: Any
    d_v: Any
    sums: Any | None


class Scratch(NamedTuple):
    """The kernel's scratch memory.

    Attributes:
      d_q, d_k, d_v: The sums of each sequence's gradients for the current blocks.
      copied: The semaphores of the copies of dq: from HBM (0) and to HBM (1), by sequence.
      tile: The tile of the bias.
      d_tile: The gradient of that tile, summed over the sequences.
      by_segment, skewed: The scratch memory of `bias_tile.Sums`.
    """

    d_q: Any
    d_k: Any
    d_v: Any
    copied: Any
    tile: Any | None
    d_tile: Any | None
    by_segment: Any | None
    skewed: Any | None


def backward(
    inputs: Inputs,
    out_BNHP: jax.Array,
    d_out_BNHP: jax.Array,
    log_sum_BN1P: jax.Array,
    wanted: Wanted,
    blocks: Blocks,
) -> Inputs:
    """Return the gradients of `inputs`: None for the segments and for tables not in `wanted`."""
    q_BNHP, k_BNHP, v_BNHP, tables, segments_B1P = inputs
    batch, heads, width, length = q_BNHP.shape
    operands = Operands(blocks, "by_key")
    by_query, by_key, row = operands.by_query(width), operands.by_key(width), operands.by_query(1)
    products_BNHP = out_BNHP.astype(jnp.float32) * d_out_BNHP.astype(jnp.float32)
    means_BN1P = jnp.sum(products_BNHP, axis=2, keepdims=True)
    bias, of_bias = operands.bias(tables)
    segments, of_segments = operands.segments(segments_B1P)
    sizes = _sizes(tables, wanted, length)
    *ends, rows = itertools.accumulate(sizes.values(), initial=0)
    starts = dict(zip(sizes, ends, strict=True))
    sums_shape = (batch // blocks.batch, heads, rows, 1, LANES)
    outs = operands.call(
        functools.partial(_kernel, blocks_of_queries=length // blocks.tokens, starts=starts),
        Ins(*(q_BNHP, k_BNHP, v_BNHP, d_out_BNHP, log_sum_BN1P, means_BN1P), segments, bias),
        Ins(*(by_query, by_key, by_key, by_query, row, row), of_segments, of_bias),
        out_shape=Outs(
            jax.ShapeDtypeStruct(q_BNHP.shape, jnp.float32),
            jax.ShapeDtypeStruct(k_BNHP.shape, k_BNHP.dtype),
            jax.ShapeDtypeStruct(v_BNHP.shape, v_BNHP.dtype),
            jax.ShapeDtypeStruct(sums_shape, jnp.float32) if starts else None,
        ),
        out_specs=Outs(
            pl.BlockSpec(memory_space=pl.ANY),
            by_key,
            by_key,
            operands.of_head(sums_shape) if starts else None,
        ),
        scratch=_scratch(blocks, width, bias is not None, wanted, sizes),
        name="fire_lm_attention_backward",
    )
    ln_2 = math.log(2)
    d_tables = None
    if tables is not None:
        sums_GNXR = outs.sums[:, :, :, 0] if starts else jnp.zeros((1, heads, 0, LANES))
        d_tables = jax.tree.map(lambda x: ln_2 * x, _to_tables(tables, sums_GNXR, starts))
    d_k = (outs.d_k.astype(jnp.float32) * ln_2).astype(k_BNHP.dtype)
    return Inputs((outs.d_q * ln_2).astype(q_BNHP.dtype), d_k, outs.d_v, d_tables, None)


def _scratch(
    blocks: Blocks, width: int, biased: bool, wanted: Wanted, sizes: dict[str, int]
) -> Scratch:
    block = pltpu.VMEM((blocks.batch, width, blocks.tokens), jnp.float32)
    tile = pltpu.VMEM((blocks.tokens, blocks.tokens), jnp.float32)
    by_segment = sum(size for name, size in sizes.items() if name in BY_SEGMENT)
    return Scratch(
        d_q=block,
        d_k=block,
        d_v=block,
        copied=pltpu.SemaphoreType.DMA((2, blocks.batch)),
        tile=tile if biased else None,
        d_tile=tile if wanted.any else None,
        by_segment=pltpu.VMEM((by_segment, 8, LANES), jnp.float32) if wanted.segment else None,
        skewed=pltpu.VMEM((LANES, 2 * blocks.tokens), jnp.float32) if wanted.slab else None,
    )


def _sizes(bias: Tables | None, wanted: Wanted, length: int) -> dict[str, int]:
    """Return the number of rows of each sum that `wanted` needs, in the order of `Sums.starts`."""
    if bias is None:
        return {}
    kinks, chunks = bias.kink_K.size, length // LANES
    sizes: dict[str, int] = {}
    if wanted.segment:
        sizes |= {"offset": kinks + 1, "slope": kinks + 1}
        sizes |= {"kink_offset": kinks, "kink_slope": kinks} if kinks else {}
    return sizes | {name: chunks for name in ("row", "gain", "slab") if getattr(wanted, name)}


def _to_tables(tables: Tables, sums_GNXR: jax.Array, starts: dict[str, int]) -> Tables:
    """Return the gradient of each table, computed from the sums, or None if it is not needed.

    The gradients have not been multiplied by the factor ln 2 yet.
    """
    found: dict[str, Any] = dict.fromkeys(Tables._fields)
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
            # Values beyond kink k belong to segment k + 1, or to a later one, not to segment k.
            d_NK = d_NK - jnp.pad(beyond_NK, ((0, 0), (0, 1)))
            d_NK = d_NK + jnp.pad(beyond_NK, ((0, 0), (1, 0)))
        found[f"{name}_KN"] = d_NK.T
    return Tables(**found)


def _kernel(
    query_X: Ref,
    key_X: Ref,
    ins: Ins,
    outs: Outs,
    scratch: Scratch,
    *,
    blocks_of_queries: int,
    starts: dict[str, int],
) -> None:
    q, k, v, d_out, log_sum, mean, segments, bias = ins
    d_q, d_k_sum, d_v_sum, copied, tile, d_tile, by_segment, skewed = scratch
    sums = None
    if outs.sums is not None:
        sums = Sums(outs.sums.at[0], starts, by_segment, skewed)
    group, head, index = (pl.program_id(axis) for axis in range(3))
    query_block, key_block = query_X[index], key_X[index]
    diagonal = query_block == key_block
    last = index == pl.num_programs(2) - 1
    batch, block = q.shape[0], q.shape[3]

    def of_d_q(b: Any) -> Ref:
        start = pl.multiple_of(query_block * block, block)
        return outs.d_q.at[group * batch + b, head, :, pl.ds(start, block)]

    def reading(b: Any) -> Any:
        return pltpu.make_async_copy(of_d_q(b), d_q.at[b], copied.at[0, b])

    def writing(b: Any) -> Any:
        return pltpu.make_async_copy(d_q.at[b], of_d_q(b), copied.at[1, b])

    def for_all(run: Any) -> None:
        jax.lax.fori_loop(0, batch, lambda b, _: run(b), None)

    @pl.when(index > 0)
    @jax.named_scope("wait.later_tile")
    def _() -> None:  # for the previous tile's writes, as this tile may read the same dq
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
        # Wait here, before the computation, which the compiler schedules best as one piece. The
        # copy was started long before.
        pl.when(key_block > 0)(lambda: reading(b).wait())
        s = logits(q.at[b, 0], k.at[b, 0], segments, b)
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
        outs.d_k[:, 0] = d_k_sum[...].astype(outs.d_k.dtype)
        outs.d_v[:, 0] = d_v_sum[...].astype(outs.d_v.dtype)

    @pl.when(last)
    @jax.named_scope("wait.last_tile")
    def _() -> None:
        for_all(lambda b: writing(b).wait())
