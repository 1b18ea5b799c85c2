"""The gradient of the bias's tables from that of a tile: once per head and tile, for all sequences.

Let d be the gradient of the tile's bias, summed over the sequences, and G the skewed slab. A part
of a tile contributes through three sums over the keys of each query,

    v = sum_j d ,   u = sum_j d G ,   w = sum_j d e^-G

and through the same sums over the values beyond each kink that the part meets. (The derivative of a
slab log(1 + c t) of distances t with respect to c is (1 - e^-G) / c, so that its rate needs v - w.)
Along the keys of a lane x decreases. The sum over the values beyond a kink is therefore the running
sum after the last of these values, and a select for each kind of sum captures it there. The factors
of the sums depend only on the query and the segment, and are applied to the sums.

A slab that is itself a table of each head (KERPLE, T5) gets its gradient as sums over equal
distances.

Shapes: S strips of 128 in a block, Q chunks of R = 128 positions or distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.bias_tile import (
    BiasRefs,
    Part,
    Ref,
    Rows,
    for_kinks,
    for_parts,
)
from fire_lm.attention.tpu.schedule import LANES, SUBLANES

# The sums whose row only the running kernel knows: they stay in scratch memory as whole registers.
IN_SCRATCH = ("offset", "slope", "rate")

Moments = tuple[jax.Array, ...]  # v, u and, with a rate, w; [8, R] each


@dataclasses.dataclass(frozen=True)
class Sums:
    """The float32 sums over a head's tiles from which the gradients of the tables are computed.

    A row has R = 128 lanes. In the rows of "row", "gain" and "slab", each lane is a query or a
    distance. The lanes of the rows `IN_SCRATCH` are partial sums, which XLA adds after the kernel.

    Attributes:
      ref: The output of the kernel, `[1, rows, 1, R]`.
      starts: The first row of each sum; sums that are not needed are absent. The sums `IN_SCRATCH`
        come first: "offset" and "slope" have a row for each segment, and "rate" has one row. Then
        come "row" and "gain", with a row for each chunk of queries, and "slab", with a row for each
        chunk of distances.
      scratch: Scratch memory `[rows, 8, R]` that holds the rows `IN_SCRATCH` until `finish` writes
        them to `ref` after the head's last tile.
      skewed: Scratch memory `[R, 2 block]` for the gradient of one tile's window of the slab.
    """

    ref: Ref
    starts: dict[str, int]
    scratch: Ref | None
    skewed: Ref | None

    def add(self, name: str, index: Any, value: jax.Array) -> None:
        """Add the sum of `value` `[8, R]` over its 8 sublanes to a row of the sum `name`."""
        if name in IN_SCRATCH:
            assert self.scratch is not None
            self.scratch[self.starts[name] + index] += value
        else:
            self.ref[0, self.starts[name] + index] += jnp.sum(value, axis=0, keepdims=True)

    def clear(self) -> None:
        self.ref[...] = jnp.zeros_like(self.ref)
        if self.scratch is not None:
            self.scratch[...] = jnp.zeros_like(self.scratch)

    def finish(self) -> None:
        if self.scratch is not None:
            rows = self.scratch.shape[0]
            self.ref[0, :rows] = jnp.sum(self.scratch[...], axis=1, keepdims=True)


def add_gradient(
    refs: BiasRefs,
    sums: Sums,
    d_tile: Ref,
    query_block: jax.Array,
    key_block: jax.Array,
    unroll: bool,
) -> None:
    """Add the contribution of `d_tile`, the gradient of the tile's bias, to each table's sums."""
    strips = d_tile.shape[0] // LANES
    if sums.skewed is not None:
        sums.skewed[...] = jnp.zeros_like(sums.skewed)

    def of_part(part: Part) -> None:
        chunk = query_block * strips + part.query
        if sums.skewed is not None:
            _add_to_skewed(refs, sums.skewed, d_tile, part)
        if sums.starts.keys() - {"slab"}:
            for_kinks(
                refs,
                part,
                lambda kinks: _add_part(refs, sums, d_tile, part, chunk, kinks, whole=True),
                lambda kinks: _add_part(refs, sums, d_tile, part, chunk, kinks, whole=False),
            )

    with jax.named_scope("bias_gradient"):
        for_parts(refs, query_block == key_block, unroll, of_part)
    if sums.skewed is not None:
        with jax.named_scope("slab_gradient"):
            _add_skewed(sums, sums.skewed, (query_block - key_block) * strips)


def _add_part(
    refs: BiasRefs,
    sums: Sums,
    d_tile: Ref,
    part: Part,
    chunk: jax.Array,
    kinks: Sequence[jax.Array],
    *,
    whole: bool,
) -> None:
    """Add the sums over the values beyond consecutive `kinks`, and over all values if `whole`."""
    rows = part.rows
    of_slab = [rows.inverse * refs.kink(k) for k in kinks]
    total, beyond = _sum_over_keys(refs, d_tile, part, of_slab, "rate" in sums.starts)
    first, _ = refs.segments_of(part)
    # A value beyond a kink belongs to the segment after it unless it is also beyond the next kink.
    lowest, bounds = (first, [total, *beyond]) if whole else (kinks[0], [None, *beyond])
    for index, (low, high) in enumerate(zip(bounds, [*bounds[1:], None], strict=True)):
        _add_segment(sums, rows, lowest + index, low, high)
    weighted = [
        (refs.change(k), refs.kink(k), moments) for k, moments in zip(kinks, beyond, strict=True)
    ]
    by_slab = [change * moments[1] for change, _, moments in weighted]
    if whole:
        by_slab.append(refs.slope(first) * total[1])
    if "row" in sums.starts:
        sums.add("row", chunk, rows.gain * sum(by_slab))
    if "gain" in sums.starts:
        values = [-change * kink * moments[0] for change, kink, moments in weighted]
        if whole:
            values.append(refs.offset(first) * total[0])
        sums.add("gain", chunk, rows.row * sum(by_slab) + sum(values))
    if "rate" in sums.starts:
        by_rate = [change * (moments[0] - moments[2]) for change, _, moments in weighted]
        if whole:
            by_rate.append(refs.slope(first) * (total[0] - total[2]))
        sums.add("rate", 0, rows.row * rows.gain * sum(by_rate))


def _sum_over_keys(
    refs: BiasRefs, d_tile: Ref, part: Part, kinks: Sequence[jax.Array], rate: bool
) -> tuple[Moments, list[Moments]]:
    """Return the moments of all values and of those beyond each kink, given z / r as `[8, R]`."""
    zero = jnp.zeros((SUBLANES, LANES), jnp.float32)
    nothing: Moments = (zero,) * (3 if rate else 2)
    d_bias, slab = part.of_tile(d_tile), refs.slab_of(part)

    def add(keys: Any, sums: tuple[Moments, list[Moments]]) -> tuple[Moments, list[Moments]]:
        total, beyond = sums
        d = d_bias[keys]
        terms = [d, d * slab[keys]]
        if rate:
            terms.append(d * jnp.exp(-slab[keys]))
        total = tuple(sum_ + term for sum_, term in zip(total, terms, strict=True))

        def capture(kink: jax.Array, before: Moments) -> Moments:
            is_beyond = slab[keys] > kink
            pairs = zip(total, before, strict=True)
            return tuple(jnp.where(is_beyond, now, then) for now, then in pairs)

        return total, [capture(*pair) for pair in zip(kinks, beyond, strict=True)]

    return part.over_keys(add, (nothing, [nothing] * len(kinks)))


def _add_segment(
    sums: Sums, rows: Rows, segment: jax.Array, low: Moments | None, high: Moments | None
) -> None:
    """Add `low` - `high` to the sums of a segment, where None stands for 0."""
    if "offset" not in sums.starts:
        return
    for name, index, factor in (
        ("offset", 0, rows.gain),
        ("slope", 1, rows.gain * rows.row),
    ):
        if low is None:
            assert high is not None
            value = -high[index]
        else:
            value = low[index] if high is None else low[index] - high[index]
        sums.add(name, segment, factor * value)


def _add_to_skewed(refs: BiasRefs, skewed: Ref, d_tile: Ref, part: Part) -> None:
    """Add the gradient of the slab of a bias without kinks."""
    row, gain, _ = part.rows
    scale = row * gain * refs.slope(jnp.int32(0))
    d_bias, d_slab = part.of_tile(d_tile), skewed.at[:, part.distances]

    def add(keys: Any, _: None) -> None:
        d_slab[keys] += d_bias[keys] * scale

    part.over_keys(add, None)


def _add_skewed(sums: Sums, skewed: Ref, first_chunk: jax.Array) -> None:
    """Add the sums of `skewed` over equal distances, where column w of row r has distance w - r.

    Each step adds one half of the rows, moved left by their number, to the other half.
    """
    rows, width = skewed.shape
    x = skewed[...]
    while rows > SUBLANES:
        rows //= 2
        x = x[:rows] + _left(x[rows:], rows)
    sublane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    while rows > 1:
        rows //= 2
        rolled = pltpu.roll(_left(x, rows), SUBLANES - rows, 0)
        x = x + jnp.where(sublane < rows, rolled, 0.0)
    strips = width // LANES // 2
    for chunk in range(2 * strips):
        # The first half of the strips are distances below that of the tile's blocks. On the
        # diagonal these distances would be negative, and their sums are 0.
        place = jnp.maximum(first_chunk + chunk - strips, 0)
        sums.ref[0, sums.starts["slab"] + place] += x[:1, chunk * LANES : (chunk + 1) * LANES]


def _left(x: jax.Array, by: int) -> jax.Array:
    return pltpu.roll(x, x.shape[1] - by, 1)
