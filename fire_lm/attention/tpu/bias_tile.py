"""A tile of the bias in a kernel, and its gradient: once per head and tile, for all sequences.

Let G be the skewed slab (`schedule.skew`) and x = G r_i. If the x of a part of the tile lie in the
segments from `first` to `last`, then

    bias = g_i (slope[first] x + sum_k change[k] max(x, z_k) + offset[last]) ,   first <= k < last

This equals g_i (slope[s] x + offset[s]), where s is the segment of x, because the bias is
continuous at its kinks z. Far from the diagonal, nearly all parts of a tile have first = last, and
the bias takes two operations per value.

For the gradient, the kernel sums over the values beyond each kink. The sums over the values of a
segment are differences of these sums, which `backward` takes after the kernel.

A tile is transposed: it has its keys along the sublanes and its queries along the lanes, so that
the numbers of the queries form one row, and sums over keys move nothing between lanes.

Shapes: S strips of 128 in a block, K kinks, N heads, Q chunks of 128 positions or distances.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.schedule import LANES

# The base-2 logit of a masked key: its softmax weight is 0, and the sum of two does not overflow.
MASKED = -1e30

Ref = Any


class BiasRefs(NamedTuple):
    """The parts of one head's tables that a tile needs.

    They are packed into few arrays, because each array costs time at every step of the grid.
    Outside the kernel, the fields hold the arrays of all heads, or the specs of their blocks.

    Attributes:
      scalars: The kinks, slopes, changes of slope and offsets, `[1, 4, K + 1]` in scalar memory.
      slab: A window of the skewed slab, `[1, R, 2 block]`. It begins one block below the distance
        between the tile's query block and its key block.
      rows: The factors r and g of the queries, `[2, block]`.
      live: The segments that each part can meet, `[1, 1, 2 S S]` in scalar memory (see
        `schedule.live_segments`), or None if the bias has no kinks.
    """

    scalars: Ref
    slab: Ref
    rows: Ref
    live: Ref | None = None

    def kink(self, k: jax.Array) -> jax.Array:
        return self.scalars[0, 0, k]

    def slope(self, segment: jax.Array) -> jax.Array:
        return self.scalars[0, 1, segment]

    def change(self, k: jax.Array) -> jax.Array:
        return self.scalars[0, 2, k]

    def offset(self, segment: jax.Array) -> jax.Array:
        return self.scalars[0, 3, segment]

    def row_and_gain(self, part: Part) -> tuple[jax.Array, jax.Array]:
        return self.rows[0:1, part.queries], self.rows[1:2, part.queries]

    def slab_of(self, part: Part) -> jax.Array:
        return self.slab[0, :, part.distances]

    def segments_of(self, part: Part) -> tuple[jax.Array, jax.Array]:
        """Return the first and the last segment that the part may meet."""
        if self.live is None:
            return jnp.int32(0), jnp.int32(0)
        return self.live[0, 0, 2 * part.index], self.live[0, 0, 2 * part.index + 1]


# The sums whose row depends on the segment, which only the running kernel knows: they stay in
# scratch memory as whole registers.
BY_SEGMENT = ("offset", "slope", "kink_offset", "kink_slope")


@dataclasses.dataclass(frozen=True)
class Sums:
    """The float32 sums over a head's tiles from which the gradients of the tables are computed.

    A row has R = 128 lanes. In the rows of "row", "gain" and "slab", each lane is a query or a
    distance. The lanes of the rows `BY_SEGMENT` are partial sums, which XLA adds after the kernel.

    Attributes:
      ref: The output of the kernel, `[1, rows, 1, R]`.
      starts: The first row of each sum; sums that are not needed are absent. The sums `BY_SEGMENT`
        come first: "offset" and "slope" have a row for each segment, in which a part adds all its
        values to its first segment; "kink_offset" and "kink_slope" have a row for each kink, with
        the same sums over the values beyond it. Then come "row" and "gain", with a row for each
        chunk of queries, and "slab", with a row for each chunk of distances.
      by_segment: Scratch memory `[rows, 8, R]` that holds the rows `BY_SEGMENT` until `finish`
        writes them to `ref` after the head's last tile.
      skewed: Scratch memory `[R, 2 block]` for the gradient of one tile's window of the slab.
    """

    ref: Ref
    starts: dict[str, int]
    by_segment: Ref | None
    skewed: Ref | None

    def add(self, name: str, index: Any, value: jax.Array) -> None:
        """Add the sum of `value` `[8, R]` over its 8 sublanes to a row of the sum `name`."""
        if name not in self.starts:
            return
        if name in BY_SEGMENT:
            assert self.by_segment is not None
            self.by_segment[self.starts[name] + index] += value
        else:
            self.ref[0, self.starts[name] + index] += jnp.sum(value, axis=0, keepdims=True)

    def clear(self) -> None:
        self.ref[...] = jnp.zeros_like(self.ref)
        if self.by_segment is not None:
            self.by_segment[...] = jnp.zeros_like(self.by_segment)

    def finish(self) -> None:
        if self.by_segment is not None:
            rows = self.by_segment.shape[0]
            self.ref[0, :rows] = jnp.sum(self.by_segment[...], axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a tile: 128 keys by 128 queries.

    Attributes:
      keys, queries: The slices of the tile's axes.
      distances: The slice of the columns of `BiasRefs.slab` and `Sums.skewed`.
      index: The index of the part's pair of entries in `BiasRefs.live`.
    """

    keys: slice
    queries: slice
    distances: slice
    index: int


def parts(block: int, on_diagonal: bool) -> Iterator[Part]:
    """Yield the parts of a tile in which some query sees some key."""
    strips = block // LANES
    for query in range(strips):
        for key in range(strips):
            if query >= key or not on_diagonal:
                distances = _strip(strips + query - key)
                yield Part(_strip(key), _strip(query), distances, query * strips + key)


def _strip(index: int) -> slice:
    return slice(index * LANES, (index + 1) * LANES)


def build(refs: BiasRefs, tile: Ref, on_diagonal: jax.Array) -> None:
    """Write the bias to `tile` `[keys, queries]`, except to parts in which no query sees a key."""
    either("bias", on_diagonal, lambda diagonal: _build(refs, tile, diagonal))


def either(name: str, on_diagonal: jax.Array, run: Callable[[bool], None]) -> None:
    """Call `run(on_diagonal)` with a static bool, in the scope `name`.diagonal or `name`.below."""
    for diagonal, place in ((True, "diagonal"), (False, "below")):

        @pl.when(on_diagonal == diagonal)
        @jax.named_scope(f"{name}.{place}")
        def _(diagonal: bool = diagonal) -> None:
            run(diagonal)


def _build(refs: BiasRefs, tile: Ref, on_diagonal: bool) -> None:
    block = tile.shape[0]
    for part in parts(block, on_diagonal):
        first, last = refs.segments_of(part)
        row, gain = refs.row_and_gain(part)
        scale, offset = row * gain * refs.slope(first), gain * refs.offset(last)
        tile[part.keys, part.queries] = refs.slab_of(part) * scale + offset
    for part in parts(block, on_diagonal):
        _for_pairs(refs, part, functools.partial(_add_bends, refs, tile, part))


def _add_bends(refs: BiasRefs, tile: Ref, part: Part, k: jax.Array) -> None:
    """Add the bends of the bias at kink k and at the next kink."""
    row, gain = refs.row_and_gain(part)
    x = refs.slab_of(part) * row
    bends = [gain * refs.change(one) * jnp.maximum(x, refs.kink(one)) for one in (k, k + 1)]
    tile[part.keys, part.queries] += bends[0] + bends[1]


def _for_pairs(refs: BiasRefs, part: Part, run: Callable[[jax.Array], None]) -> None:
    """Call `run` for every other kink that the part may meet, to do that kink and the next.

    Kinks come in pairs because a part is too large to stay in registers from one kink to the next.
    """
    if refs.live is None:
        return
    first, last = refs.segments_of(part)

    @pl.when(first < last)
    @jax.named_scope(f"bends.{part.index}")
    def _() -> None:
        # Not `// 2`: because of the sign, libtpu's compiler would query a TPU about it.
        pairs = (last - first) >> 1
        jax.lax.fori_loop(0, pairs, lambda pair, _: run(first + 2 * pair), None)


def add_gradient(
    refs: BiasRefs, sums: Sums, d_tile: Ref, query_block: jax.Array, key_block: jax.Array
) -> None:
    """Add the contribution of `d_tile`, the gradient of the tile's bias, to each table's sums."""
    strips = d_tile.shape[0] // LANES
    if sums.skewed is not None:
        sums.skewed[...] = jnp.zeros_like(sums.skewed)

    def of_parts(diagonal: bool) -> None:
        for part in parts(d_tile.shape[0], diagonal):
            _add_part(refs, sums, d_tile, part, query_block * strips)

    either("bias_gradient", query_block == key_block, of_parts)
    if sums.skewed is not None:
        with jax.named_scope("slab_gradient"):
            _add_skewed(sums, sums.skewed, (query_block - key_block) * strips)


def _add_part(refs: BiasRefs, sums: Sums, d_tile: Ref, part: Part, first_chunk: jax.Array) -> None:
    chunk = first_chunk + part.queries.start // LANES
    first, _ = refs.segments_of(part)
    row, gain = refs.row_and_gain(part)
    slope, offset = refs.slope(first), refs.offset(first)
    d_bias = d_tile[part.keys, part.queries]
    values, by_slab = _to_8_keys(d_bias), _to_8_keys(d_bias * refs.slab_of(part))
    sums.add("offset", first, gain * values)
    sums.add("slope", first, gain * row * by_slab)
    sums.add("gain", chunk, slope * row * by_slab + offset * values)
    sums.add("row", chunk, gain * slope * by_slab)
    if sums.skewed is not None:
        sums.skewed[:, part.distances] += d_bias * (gain * row * slope)
    _for_pairs(refs, part, functools.partial(_add_beyond, refs, sums, d_tile, part, chunk))


def _add_beyond(
    refs: BiasRefs, sums: Sums, d_tile: Ref, part: Part, chunk: jax.Array, k: jax.Array
) -> None:
    """Add the sums over the values beyond kink k and beyond the next kink."""
    row, gain = refs.row_and_gain(part)
    slab, d_bias = refs.slab_of(part), d_tile[part.keys, part.queries]
    d_slab = jnp.zeros_like(slab)
    d_row = d_gain = jnp.zeros((8, LANES), jnp.float32)
    for one in (k, k + 1):
        kink, change = refs.kink(one), refs.change(one)
        beyond = jnp.where(slab * row > kink, d_bias, 0.0)
        values, by_slab = _to_8_keys(beyond), _to_8_keys(beyond * slab)
        sums.add("kink_offset", one, gain * values)
        sums.add("kink_slope", one, gain * row * by_slab)
        d_gain += change * (row * by_slab - kink * values)
        d_row += gain * change * by_slab
        d_slab += beyond * (gain * row * change)
    sums.add("gain", chunk, d_gain)
    sums.add("row", chunk, d_row)
    if sums.skewed is not None:
        sums.skewed[:, part.distances] += d_slab


def _to_8_keys(x: jax.Array) -> jax.Array:
    """Sum `[keys, queries]` to `[8, queries]` by adding whole registers of 8 keys."""
    return jnp.sum(x.reshape(-1, 8, x.shape[1]), axis=0)


def _add_skewed(sums: Sums, skewed: Ref, first_chunk: jax.Array) -> None:
    """Add the sums of `skewed` over equal distances, where column w of row r has distance w - r.

    Each step adds one half of the rows, moved left by their number, to the other half.
    """
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
        # The first half of the strips are distances below that of the tile's blocks. On the
        # diagonal these distances would be negative, and their sums are 0.
        place = jnp.maximum(first_chunk + chunk - strips, 0)
        sums.ref[0, sums.starts["slab"] + place] += x[:1, _strip(chunk)]


def _left(x: jax.Array, by: int) -> jax.Array:
    return pltpu.roll(x, x.shape[1] - by, 1)
