"""A tile of the bias inside a kernel, and its gradient: once per head and tile, whatever the batch.

With G the skewed slab (`schedule.skew`), x = G r_i, and segments from `first` to `last`,

    bias = g_i (slope[first] x + sum_k change[k] max(x, z_k) + offset[last]) ,   first <= k < last

which is slope[s] x + offset[s] where s is the segment of x, since the bias is continuous at its
kinks z. Far from the diagonal nearly all parts of a tile have first = last: two operations a value.

In the gradient, `kinks` hold the sums over the values beyond a kink, of which the sums over a
segment are differences (`segment_sums`).

Everything is transposed: keys along the sublanes, queries along the lanes, so that what belongs to
a query is one row, and sums over keys cost no movement between lanes.

Shapes: S strips of 128 in a block, K kinks, N heads, Q chunks of 128 positions or distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.schedule import LANES

# In the base-2 logits of the kernels: vanishes in a softmax, and two of them do not overflow.
MASKED = -1e30

Ref = Any


@dataclasses.dataclass(frozen=True)
class BiasRefs:
    """The tables of one head, as far as a tile needs them.

    Attributes:
      slope, offset: `[1, 1, K + 1]` in scalar memory.
      slab, slab_before: windows of the skewed slab `[1, R, block]`: distances from that of the
        blocks on, and those below.
      row, gain: `[1, block]` of the queries.
      kink, change: `[1, 1, K]` in scalar memory; None where there are no kinks.
      live: `[1, 1, 2 S S]` in scalar memory, see `schedule.live_segments`; None likewise.
    """

    slope: Ref
    offset: Ref
    slab: Ref
    slab_before: Ref
    row: Ref
    gain: Ref
    kink: Ref | None = None
    change: Ref | None = None
    live: Ref | None = None


@dataclasses.dataclass(frozen=True)
class GradientRefs:
    """Sums over a head's tiles, float32, of which XLA sums the lanes; None where nobody asks.

    Attributes:
      segment: `[1, 2, K + 1, 1, R]`, to offset and slope, by first segment of a part.
      kink: `[1, 2, K, 1, R]`, the same of the values beyond each kink.
      row, gain: `[1, Q, 1, R]` by query.
      slab: `[1, Q, 1, R]` by distance.
      skewed: scratch `[R, 2 block]`, the gradient to the slab of one tile.
    """

    segment: Ref | None
    kink: Ref | None
    row: Ref | None
    gain: Ref | None
    slab: Ref | None
    skewed: Ref | None

    def clear(self) -> None:
        """At a head's first tile."""
        for field in dataclasses.fields(self):
            ref = getattr(self, field.name)
            if ref is not None:
                ref[...] = jnp.zeros_like(ref)


@dataclasses.dataclass(frozen=True)
class Part:
    """128 keys by 128 queries of a tile.

    Attributes:
      keys, queries: their slices of the tile.
      offset: queries' strip less keys' strip, both within their block.
      index: of its pair of entries in `BiasRefs.live`.
    """

    keys: slice
    queries: slice
    offset: int
    index: int


def parts(block: int, on_diagonal: bool) -> Iterator[Part]:
    """Those of a tile with keys that some query sees."""
    strips = block // LANES
    for query in range(strips):
        for key in range(strips):
            if query >= key or not on_diagonal:
                yield Part(_strip(key), _strip(query), query - key, query * strips + key)


def _strip(index: int) -> slice:
    return slice(index * LANES, (index + 1) * LANES)


def build(refs: BiasRefs, tile: Ref, on_diagonal: jax.Array) -> None:
    """Fills `tile` [keys, queries], the causal mask included."""
    _either(on_diagonal, lambda diagonal: _build(refs, tile, diagonal))


def _either(on_diagonal: jax.Array, run: Callable[[bool], None]) -> None:
    pl.when(on_diagonal)(lambda: run(True))
    pl.when(jnp.logical_not(on_diagonal))(lambda: run(False))


def _build(refs: BiasRefs, tile: Ref, on_diagonal: bool) -> None:
    block = tile.shape[0]
    if on_diagonal:
        for key in range(1, block // LANES):  # keys behind all these queries
            tile[_strip(key), : key * LANES] = jnp.full((LANES, key * LANES), MASKED, jnp.float32)
    for part in parts(block, on_diagonal):
        first, last = _segments_of(refs, part)
        row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
        slab = _slab_of(refs, part)
        bias = slab * (row * gain * refs.slope[0, 0, first]) + gain * refs.offset[0, 0, last]
        tile[part.keys, part.queries] = _masked(bias, on_diagonal and part.offset == 0)
    if refs.kink is None:
        return
    for part in parts(block, on_diagonal):
        _add_bends(refs, tile, part)


def _add_bends(refs: BiasRefs, tile: Ref, part: Part) -> None:
    first, last = _segments_of(refs, part)

    @pl.when(first < last)
    def _() -> None:
        x = _slab_of(refs, part) * refs.row[:, part.queries]

        def add(k: jax.Array, bends: jax.Array) -> jax.Array:
            return bends + refs.change[0, 0, k] * jnp.maximum(x, refs.kink[0, 0, k])

        bends = jax.lax.fori_loop(first, last, add, jnp.zeros_like(x))
        # Where masked, this changes nothing that matters.
        tile[part.keys, part.queries] += refs.gain[:, part.queries] * bends


def _segments_of(refs: BiasRefs, part: Part) -> tuple[jax.Array, jax.Array]:
    if refs.live is None:
        return jnp.int32(0), jnp.int32(0)
    return refs.live[0, 0, 2 * part.index], refs.live[0, 0, 2 * part.index + 1]


def _slab_of(refs: BiasRefs, part: Part) -> jax.Array:
    block = refs.slab.shape[2]
    if part.offset >= 0:
        return refs.slab[0, :, _strip(part.offset)]
    return refs.slab_before[0, :, _strip(block // LANES + part.offset)]


def _masked(x: jax.Array, on_diagonal: bool) -> jax.Array:
    if not on_diagonal:
        return x
    key, query = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.where(key <= query, x, MASKED)


def add_gradient(
    refs: BiasRefs,
    sums: GradientRefs,
    d_tile: Ref,
    query_block: jax.Array,
    key_block: jax.Array,
) -> None:
    """Adds what `d_tile`, the gradient to the tile's bias, is to each table."""
    strips = d_tile.shape[0] // LANES
    if sums.skewed is not None:
        sums.skewed[...] = jnp.zeros_like(sums.skewed)

    def of_parts(diagonal: bool) -> None:
        for part in parts(d_tile.shape[0], diagonal):
            _add_part(refs, sums, d_tile, part, query_block * strips)

    _either(query_block == key_block, of_parts)
    if sums.skewed is not None:
        _add_skewed(sums.skewed, sums.slab, (query_block - key_block) * strips)


def _add_part(
    refs: BiasRefs, sums: GradientRefs, d_tile: Ref, part: Part, first_chunk: jax.Array
) -> None:
    first, last = _segments_of(refs, part)
    row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
    slope, offset = refs.slope[0, 0, first], refs.offset[0, 0, first]
    chunk = first_chunk + part.queries.start // LANES

    def add(d_bias: jax.Array, slope: jax.Array, offset: jax.Array, place: Any) -> None:
        """For values whose bias is g (slope x + offset), or has that beside other terms."""
        values, by_slab = _sum_keys(d_bias), _sum_keys(d_bias * _slab_of(refs, part))
        if place is not None:
            place[0] += gain * values
            place[1] += gain * row * by_slab
        if sums.gain is not None:
            sums.gain[0, chunk] += slope * row * by_slab + offset * values
        if sums.row is not None:
            sums.row[0, chunk] += gain * slope * by_slab

    place = None if sums.segment is None else sums.segment.at[0, :, first]
    add(d_tile[part.keys, part.queries], slope, offset, place)
    skewed = None
    if sums.skewed is not None:
        skewed = sums.skewed.at[:, _skewed_strip(part, d_tile.shape[0])]
        skewed[...] += d_tile[part.keys, part.queries] * (gain * row * slope)
    if refs.kink is None:
        return

    @pl.when(first < last)
    def _() -> None:
        x = _slab_of(refs, part) * row

        def bend(k: jax.Array, d_x: jax.Array) -> jax.Array:
            kink, change = refs.kink[0, 0, k], refs.change[0, 0, k]
            beyond = jnp.where(x > kink, d_tile[part.keys, part.queries], 0.0)
            place = None if sums.kink is None else sums.kink.at[0, :, k]
            add(beyond, change, -kink * change, place)
            return d_x + change * beyond

        d_x = jax.lax.fori_loop(first, last, bend, jnp.zeros_like(x))
        if skewed is not None:
            skewed[...] += d_x * (gain * row)


def _sum_keys(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=0, keepdims=True)


def _skewed_strip(part: Part, block: int) -> slice:
    """Where a part's distances are in `skewed`, which starts `block` before the tile's own."""
    return _strip(part.offset + block // LANES)


def _add_skewed(skewed: Ref, slab: Ref, first_chunk: jax.Array) -> None:
    """Adds the sums over equal distances, w - r in row r, of `skewed`; the rows meet in pairs."""
    rows, width = skewed.shape
    x = skewed[...]
    while rows > 8:
        rows //= 2
        x = x[:rows] + _left(x[rows:], rows)
    sublane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    while rows > 1:
        rows //= 2
        x = x + jnp.where(sublane < rows, pltpu.roll(_left(x, rows), 8 - rows, 0), 0.0)
    strips = width // LANES // 2
    for chunk in range(2 * strips):
        # The first strips are those of distances below the tile's; on the diagonal, of none.
        place = jnp.maximum(first_chunk + chunk - strips, 0)
        slab[0, place] += x[:1, _strip(chunk)]


def _left(x: jax.Array, by: int) -> jax.Array:
    return pltpu.roll(x, x.shape[1] - by, 1)
