"""The gradient to the bias's tables from that to a tile of it: once per head and tile.

With d the gradient to the bias, summed over the sequences, a part of a tile needs by query the sums

    v = sum_j d ,   u = sum_j d G ,   w = sum_j d e^-G

and the same of the values beyond each kink that the part meets. (v - w is c times what the slab
log(1 + c d) needs, whose derivative by c is (1 - e^-G) / c.) Along the keys of a lane x falls, so
the sum beyond a kink is what the running sum is where the last value beyond it was added: it is
captured there by a select for each kind of sum. What multiplies a sum depends on the query and the
segment alone, and follows.

A slab that is a table itself, by head (KERPLE, T5), gets its gradient as sums over equal distances.

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
    GROUPS,
    BiasRefs,
    Part,
    Ref,
    Rows,
    for_kinks,
    for_parts,
)
from fire_lm.attention.tpu.schedule import LANES, SUBLANES

# Sums whose place is known in the kernel alone: they stay in scratch, as whole registers.
IN_SCRATCH = ("offset", "slope", "rate")

Moments = tuple[jax.Array, ...]  # v, u and, with a rate, w; [8, R] each


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums over a head's tiles, float32, of which XLA sums the lanes.

    Attributes:
      ref: `[1, rows, 1, R]`.
      starts: the first row of each sum; sums that are not wanted are absent. First those
        `IN_SCRATCH`: "offset" and "slope" by segment, "rate" one row; then "row" and "gain" by
        chunk of queries, "slab" by chunk of distances.
      scratch: `[rows, 8, R]`, the first of `ref` until the head's last tile.
      skewed: scratch `[R, 2 block]`, the gradient to the slab of one tile.
    """

    ref: Ref
    starts: dict[str, int]
    scratch: Ref | None
    skewed: Ref | None

    def add(self, name: str, index: Any, value: jax.Array) -> None:
        """`value` `[8, R]`, of which `ref` has the sum."""
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
    refs: BiasRefs, sums: Sums, d_tile: Ref, query_block: jax.Array, key_block: jax.Array
) -> None:
    """Add what `d_tile`, the gradient to the tile's bias, is to each table."""
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
        for_parts(refs, query_block == key_block, of_part)
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
    """Add the part of the values beyond `kinks`, which follow one another; `whole`: of all too."""
    rows = part.rows
    of_slab = [rows.inverse * refs.kink(k) for k in kinks]
    total, beyond = _sum_over_keys(refs, d_tile, part, of_slab, "rate" in sums.starts)
    first, _ = refs.segments_of(part)
    # What is beyond a kink is of the segment after it, if not beyond the next.
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
    """The moments of all values, and of those beyond each kink; `kinks` `[8, R]` in the slab."""
    zero = jnp.zeros((SUBLANES, LANES), jnp.float32)
    run: Moments = (zero,) * (3 if rate else 2)
    captured = [run] * len(kinks)
    d_bias, slab = part.of_tile(d_tile), refs.slab_of(part)
    for keys in GROUPS:
        d = d_bias[keys]
        terms = [d, d * slab[keys]]
        if rate:
            terms.append(d * jnp.exp(-slab[keys]))
        run = tuple(sum_ + term for sum_, term in zip(run, terms, strict=True))
        for index, kink in enumerate(kinks):
            is_beyond = slab[keys] > kink
            captured[index] = tuple(
                jnp.where(is_beyond, now, before)
                for now, before in zip(run, captured[index], strict=True)
            )
    return run, captured


def _add_segment(
    sums: Sums, rows: Rows, segment: jax.Array, low: Moments | None, high: Moments | None
) -> None:
    """Add `low` - `high` to the sums of a segment; either may be None, for nothing."""
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
    """Of a bias without kinks."""
    row, gain, _ = part.rows
    scale = row * gain * refs.slope(jnp.int32(0))
    d_bias, d_slab = part.of_tile(d_tile), skewed.at[:, part.distances]
    for keys in GROUPS:
        d_slab[keys] += d_bias[keys] * scale


def _add_skewed(sums: Sums, skewed: Ref, first_chunk: jax.Array) -> None:
    """Add the sums over equal distances, w - r in row r, of `skewed`; the rows meet in pairs."""
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
        # The first strips are those of distances below the tile's; on the diagonal, of none.
        place = jnp.maximum(first_chunk + chunk - strips, 0)
        sums.ref[0, sums.starts["slab"] + place] += x[:1, chunk * LANES : (chunk + 1) * LANES]


def _left(x: jax.Array, by: int) -> jax.Array:
    return pltpu.roll(x, x.shape[1] - by, 1)
