"""The gradients of the bias tables, computed from the gradient of each tile of the bias.

Let d be the gradient of a tile's bias, summed over the sequences, and G the skewed slab
(`schedule.skew`). A part of a tile contributes through three sums over the keys of each query,

    v = sum_j d ,   u = sum_j d G ,   w = sum_j d e^-G

and through the same sums over only the values beyond each kink in the part. (For a slab log(1 + c
t) of the distance t, the derivative with respect to c is (1 - e^-G) / c, so the gradient of the
rate c needs v - w.) Along the keys of a query, x decreases. The sum over the values beyond a kink
is therefore the running sum after the last of these values, where a select captures it. All other
factors depend only on the query and the segment, so they are applied to the sums.

If the slab itself needs a gradient (KERPLE, T5), the gradient at a distance is the sum over all
pairs at this distance.

Shapes: S strips of 128 in a block, Q chunks of R = 128 positions or distances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.near_tile import add_near
from fire_lm.attention.tpu.part_lists import Near
from fire_lm.attention.tpu.parts import BiasRefs, Part, Ref, Rows, for_parts
from fire_lm.attention.tpu.schedule import LANES, SUBLANES, Blocks
from fire_lm.attention.tpu.sums import Sums

Moments = tuple[jax.Array, ...]  # v, u and, with a rate, w; [8, R] each

_LOG2_E = math.log2(math.e)


def add_gradient(
    refs: BiasRefs,
    sums: Sums,
    d_tile: Ref,
    query_block: jax.Array,
    key_block: jax.Array,
    blocks: Blocks,
    unroll: bool,
) -> None:
    """Add the contribution of `d_tile`, the gradient of the tile's bias, to each table's sums."""
    strips = d_tile.shape[0] // LANES
    if sums.skewed is not None:
        sums.skewed[...] = jnp.zeros_like(sums.skewed)

    def chunk_of(part: Part) -> jax.Array:
        return query_block * strips + part.query

    def first_few(part: Part, kinks: Sequence[jax.Array]) -> None:
        if sums.skewed is not None:
            _add_to_skewed(refs, sums.skewed, d_tile, part)
        if sums.starts.keys() - {"slab"}:
            _add_part(refs, sums, d_tile, part, chunk_of(part), kinks, whole=True)

    def more(part: Part, kinks: Sequence[jax.Array]) -> None:
        _add_part(refs, sums, d_tile, part, chunk_of(part), kinks, whole=False)

    def near(kind: Near, part: Part) -> None:
        add_near(refs, sums, d_tile, chunk_of(part), kind, part)

    with jax.named_scope("bias_gradient"):
        key_strips = blocks.key_strips(query_block, key_block)
        for_parts(refs, key_strips, unroll, first_few, more, near)
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
    """Add the sums over the values beyond each of `kinks` and, if `whole`, over all values.

    The kinks are consecutive.
    """
    rows = part.rows
    of_slab = [rows.inverse * refs.kink(k) for k in kinks]
    total, beyond = _sum_over_keys(refs, d_tile, part, of_slab, "rate" in sums.starts)
    # A value beyond a kink belongs to the segment after it unless it is also beyond the next kink.
    lowest, bounds = (part.first, [total, *beyond]) if whole else (kinks[0], [None, *beyond])
    for index, (low, high) in enumerate(zip(bounds, [*bounds[1:], None], strict=True)):
        _add_segment(sums, rows, lowest + index, low, high)
    weighted = [
        (refs.change(k), refs.kink(k), moments) for k, moments in zip(kinks, beyond, strict=True)
    ]
    by_slab = [change * moments[1] for change, _, moments in weighted]
    if whole:
        by_slab.append(refs.slope(part.first) * total[1])
    if "row" in sums.starts:
        sums.add("row", chunk, rows.gain * sum(by_slab))
    if "gain" in sums.starts:
        values = [-change * kink * moments[0] for change, kink, moments in weighted]
        if whole:
            values.append(refs.offset(part.first) * total[0])
        sums.add("gain", chunk, rows.row * sum(by_slab) + sum(values))
    if "rate" in sums.starts:
        by_rate = [change * (moments[0] - moments[2]) for change, _, moments in weighted]
        if whole:
            by_rate.append(refs.slope(part.first) * (total[0] - total[2]))
        sums.add("rate", 0, rows.row * rows.gain * sum(by_rate))


def _sum_over_keys(
    refs: BiasRefs, d_tile: Ref, part: Part, kinks: Sequence[jax.Array], rate: bool
) -> tuple[Moments, list[Moments]]:
    """Return the moments of all values and of the values beyond each kink.

    `kinks` are the kinks divided by r, `[8, R]` each.
    """
    zero = jnp.zeros((SUBLANES, LANES), jnp.float32)
    nothing: Moments = (zero,) * (3 if rate else 2)
    d_bias, slab = part.of_tile(d_tile), refs.slab_of(part)

    def add(group: Any, sums: tuple[Moments, list[Moments]]) -> tuple[Moments, list[Moments]]:
        total, beyond = sums
        keys = part.keys(group)
        d = d_bias[keys]
        terms = [d, d * slab[keys]]
        if rate:
            terms.append(d * jnp.exp2(slab[keys] * -_LOG2_E))
        total = tuple(sum_ + term for sum_, term in zip(total, terms, strict=True))

        def capture(kink: jax.Array, before: Moments) -> Moments:
            is_beyond = slab[keys] > kink
            pairs = zip(total, before, strict=True)
            return tuple(jnp.where(is_beyond, now, then) for now, then in pairs)

        return total, [capture(*pair) for pair in zip(kinks, beyond, strict=True)]

    return part.over_groups(add, (nothing, [nothing] * len(kinks)))


def _add_segment(
    sums: Sums, rows: Rows, segment: jax.Array, low: Moments | None, high: Moments | None
) -> None:
    """Add `low - high` to the sums of a segment, where None means 0."""
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
    """Add the part's gradient of the slab to `skewed`, for a bias without kinks."""
    row, gain, _ = part.rows
    scale = row * gain * refs.slope(jnp.int32(0))
    d_bias, d_slab = part.of_tile(d_tile), skewed.at[:, part.distances]

    def add(group: Any, _: None) -> None:
        keys = part.keys(group)
        d_slab[keys] += d_bias[keys] * scale

    part.over_groups(add, None)


def _add_skewed(sums: Sums, skewed: Ref, first_chunk: jax.Array) -> None:
    """Sum `skewed` over equal distances, w - r for column w of row r, and add the result to `sums`.

    Each step adds the second half of the rows to the first half, after moving the second half left
    by as many columns as it has rows.
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
        # The first half of the strips contain distances below the distance between the tile's
        # blocks. On the diagonal, these distances would be negative, and their sums are 0.
        place = jnp.maximum(first_chunk + chunk - strips, 0)
        sums.ref[0, sums.starts["slab"] + place] += x[:1, chunk * LANES : (chunk + 1) * LANES]


def _left(x: jax.Array, by: int) -> jax.Array:
    return pltpu.roll(x, x.shape[1] - by, 1)
