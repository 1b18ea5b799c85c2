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
    """Fills `tile` [keys, queries], but for parts that no query sees."""
    either("bias", on_diagonal, lambda diagonal: _build(refs, tile, diagonal))


def either(name: str, on_diagonal: jax.Array, run: Callable[[bool], None]) -> None:
    """`run` of whether the tile is on the diagonal, in scope `name`.diagonal or `name`.below."""
    for diagonal, place in ((True, "diagonal"), (False, "below")):

        @pl.when(on_diagonal == diagonal)
        @jax.named_scope(f"{name}.{place}")
        def _(diagonal: bool = diagonal) -> None:
            run(diagonal)


def _build(refs: BiasRefs, tile: Ref, on_diagonal: bool) -> None:
    block = tile.shape[0]
    for part in parts(block, on_diagonal):
        first, last = _segments_of(refs, part)
        row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
        slab = _slab_of(refs, part)
        bias = slab * (row * gain * refs.slope[0, 0, first]) + gain * refs.offset[0, 0, last]
        tile[part.keys, part.queries] = bias
    for part in parts(block, on_diagonal):
        _add_bends(refs, tile, part)


def _add_bends(refs: BiasRefs, tile: Ref, part: Part) -> None:
    kinks, changes = refs.kink, refs.change
    if kinks is None or changes is None:
        return

    def add(k: jax.Array) -> None:
        row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
        x = _slab_of(refs, part) * row
        bends = [gain * changes[0, 0, one] * jnp.maximum(x, kinks[0, 0, one]) for one in (k, k + 1)]
        tile[part.keys, part.queries] += bends[0] + bends[1]

    _for_pairs(refs, part, add)


def _for_pairs(refs: BiasRefs, part: Part, run: Callable[[jax.Array], None]) -> None:
    """`run` for every other kink that the part may meet, to do that one and the next.

    In pairs, since a part is too large to stay in registers between one kink and the next.
    """
    first, last = _segments_of(refs, part)

    @pl.when(first < last)
    @jax.named_scope(f"bends.{part.index}")
    def _() -> None:
        pairs = (last - first) >> 1  # `//` has a sign, which libtpu's compiler asks a TPU about
        jax.lax.fori_loop(0, pairs, lambda pair, _: run(first + 2 * pair), None)


def _segments_of(refs: BiasRefs, part: Part) -> tuple[jax.Array, jax.Array]:
    """First and last that the part may meet."""
    if refs.live is None:
        return jnp.int32(0), jnp.int32(0)
    return refs.live[0, 0, 2 * part.index], refs.live[0, 0, 2 * part.index + 1]


def _slab_of(refs: BiasRefs, part: Part) -> jax.Array:
    block = refs.slab.shape[2]
    if part.offset >= 0:
        return refs.slab[0, :, _strip(part.offset)]
    return refs.slab_before[0, :, _strip(block // LANES + part.offset)]


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

    either("bias_gradient", query_block == key_block, of_parts)
    if sums.skewed is not None and sums.slab is not None:
        with jax.named_scope("slab_gradient"):
            _add_skewed(sums.skewed, sums.slab, (query_block - key_block) * strips)


def _add_part(
    refs: BiasRefs, sums: GradientRefs, d_tile: Ref, part: Part, first_chunk: jax.Array
) -> None:
    first, last = _segments_of(refs, part)
    row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
    slope, offset = refs.slope[0, 0, first], refs.offset[0, 0, first]
    chunk = first_chunk + part.queries.start // LANES

    def add(terms: list[tuple[jax.Array, jax.Array, jax.Array, Any]]) -> None:
        """(gradient, slope, offset, place) of terms g (slope x + offset) of the bias."""
        row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
        d_row, d_gain = jnp.zeros_like(row), jnp.zeros_like(gain)
        for d_bias, slope, offset, place in terms:
            values, by_slab = _sum_keys(d_bias), _sum_keys(d_bias * _slab_of(refs, part))
            if place is not None:
                place[0] += gain * values
                place[1] += gain * row * by_slab
            d_gain += slope * row * by_slab + offset * values
            d_row += slope * by_slab
        if sums.gain is not None:
            sums.gain[0, chunk] += d_gain
        if sums.row is not None:
            sums.row[0, chunk] += gain * d_row

    place = None if sums.segment is None else sums.segment.at[0, :, first]
    add([(d_tile[part.keys, part.queries], slope, offset, place)])
    skewed = None
    if sums.skewed is not None:
        skewed = sums.skewed.at[:, _skewed_strip(part, d_tile.shape[0])]
        skewed[...] += d_tile[part.keys, part.queries] * (gain * row * slope)
    kinks, changes = refs.kink, refs.change
    if kinks is None or changes is None:
        return

    def bend(k: jax.Array) -> None:
        row, gain = refs.row[:, part.queries], refs.gain[:, part.queries]
        x, d_bias = _slab_of(refs, part) * row, d_tile[part.keys, part.queries]
        pair = []
        for one in (k, k + 1):
            kink, change = kinks[0, 0, one], changes[0, 0, one]
            place = None if sums.kink is None else sums.kink.at[0, :, one]
            pair.append((jnp.where(x > kink, d_bias, 0.0), change, -kink * change, place))
        add(pair)
        if skewed is not None:
            scale = gain * row
            skewed[...] += sum(beyond * (scale * change) for beyond, change, *_ in pair)

    _for_pairs(refs, part, bend)


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
