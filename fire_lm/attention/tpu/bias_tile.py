"""The construction of a bias tile in a kernel, once per head and tile for all sequences.

Let G be the skewed slab (`schedule.skew`) and x = G r_i. If every x in a part of the tile lies in
one of the segments `first` to `last`, then

    bias = g_i (slope[first] x + sum_k change[k] max(x, z_k) + offset[last]) ,   first <= k < last

This equals g_i (slope[s] x + offset[s]), where s is the segment of x, because the bias is
continuous at its kinks z. Since r_i > 0, max(x, z_k) = r_i max(G, z_k / r_i), and all keys share
the row of values z_k / r_i.

A tile is built in parts of 128 keys by 128 queries; parts next to the diagonal use separate tables
(`near_tile`). Far from the diagonal, many parts have first = last, and the bias takes two
operations per value. In the other parts, a first pass adds up to `KINKS` kinks together with the
linear term, with separate code for each number of kinks, so that only the result is stored. Further
passes add `KINKS` kinks each.

A tile is transposed: keys run along the sublanes and queries along the lanes. One value per query
then forms a row, and sums over keys move no data between lanes.

Shapes: S strips of 128 in a block, K kinks, N heads, R = 128.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention.tpu.near_tile import build_near
from fire_lm.attention.tpu.parts import BiasRefs, Part, Ref, for_parts
from fire_lm.attention.tpu.schedule import KeyStrips


def build(refs: BiasRefs, tile: Ref, key_strips: KeyStrips, unroll: bool) -> None:
    """Write the bias to `tile` `[keys, queries]`, except for parts in which no query sees a key."""

    def first_few(part: Part, kinks: Sequence[jax.Array]) -> None:
        row, gain, _ = part.rows
        slope, offset = row * gain * refs.slope(part.first), gain * refs.offset(part.last)
        slab, out, bent = refs.slab_of(part), part.of_tile(tile), _bends(refs, part, kinks)

        def write(group: Any, _: None) -> None:
            keys = part.keys(group)
            out[keys] = bent(slab[keys], slab[keys] * slope + offset)

        part.over_groups(write, None)

    def more(part: Part, kinks: Sequence[jax.Array]) -> None:
        slab, out, bent = refs.slab_of(part), part.of_tile(tile), _bends(refs, part, kinks)

        def add(group: Any, _: None) -> None:
            keys = part.keys(group)
            out[keys] = bent(slab[keys], out[keys])

        part.over_groups(add, None)

    with jax.named_scope("bias"):
        near = functools.partial(build_near, refs, tile)
        for_parts(refs, key_strips, unroll, first_few, more, near)


def _bends(
    refs: BiasRefs, part: Part, kinks: Sequence[jax.Array]
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function of the slab that adds the terms of `kinks` to its second argument."""
    row, gain, inverse = part.rows
    scale = row * gain
    pairs = [(scale * refs.change(k), inverse * refs.kink(k)) for k in kinks]

    def bent(slab: jax.Array, start: jax.Array) -> jax.Array:
        for change, kink in pairs:
            start = start + change * jnp.maximum(slab, kink)
        return start

    return bent
