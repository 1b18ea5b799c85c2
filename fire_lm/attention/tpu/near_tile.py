"""The bias and the sums of its gradient for the parts of a tile near the diagonal, in a kernel.

A part uses the tables of its key strip (`near_tables`) at two blocks of 128 distances. Let m be 0
if the query strip is the key strip, and 1 if it is the next strip. For group g of 8 keys, query l
of the part uses block m of the distances if l >= 8 g, and block m - 1 otherwise:

    lanes w of group g            queries l of the part
    +--------------+---------+    +---------+--------------+
    | block m      | m - 1   | -> | m - 1   | block m      |     rotated by 8 g to the right
    +--------------+---------+    +---------+--------------+
    0       128 - 8 g      128    0        8 g           128

One rotation therefore moves the bias from the lanes of distances to those of queries, and one
rotation moves its gradient back. The row r is rotated in advance (`near_tables.turned`). If m = 0,
the distances of block m - 1 are negative and masked, so the code uses block 0 instead.

From group to group, the query of a lane increases within each of the two blocks, so r decreases,
and the sums beyond a kink are captured as in `bias_gradient`. At some group, a lane changes from
block m to block m - 1, where its sums so far are captured too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.part_lists import ROUNDS, Near
from fire_lm.attention.tpu.parts import BiasRefs, Part, Ref
from fire_lm.attention.tpu.schedule import LANES, SUBLANES
from fire_lm.attention.tpu.sums import Sums

Tables = list[tuple[jax.Array, jax.Array]]  # blocks m and m - 1 of each table, [8, R] each
Moments = tuple[jax.Array, jax.Array]  # the sums of d and of d r, [8, R] each


def build_near(refs: BiasRefs, tile: Ref, kind: Near, part: Part) -> None:
    """Write the bias of a part near the diagonal to `tile`."""
    out, tables = part.of_tile(tile), _tables(refs, part, kind)

    def write(group: Any, _: None) -> None:
        row = refs.turned_row(part, group)
        bias = _to_queries(_value(row, _chosen(tables, _in_block(group), kind)), group)
        out[part.keys(group)] = part.rows.gain * bias

    part.over_groups(write, None)


def add_near(
    refs: BiasRefs, sums: Sums, d_tile: Ref, chunk: jax.Array, kind: Near, part: Part
) -> None:
    """Add the contribution of a part near the diagonal to the sums.

    With d the gradient of the bias, the sums at each distance are those of d g and d g r, over all
    values and over the values beyond each kink.
    """
    d_bias, tables = part.of_tile(d_tile), _tables(refs, part, kind)
    zero = jnp.zeros((SUBLANES, LANES), jnp.float32)
    nothing = [(zero, zero)] * (1 + kind.rounds)

    def add(group: Any, carry: Any) -> Any:
        total, own, before, d_row, d_gain = carry
        here, row = _in_block(group), refs.turned_row(part, group)
        chosen = _chosen(tables, here, kind)
        slope, _, *bends = chosen
        beyond = [row > kink for kink in bends[1::2]]
        for change, mask in zip(bends[::2], beyond, strict=True):
            slope = slope + jnp.where(mask, change, 0.0)
        d_keys = d_bias[part.keys(group)]
        d = d_keys * part.rows.gain
        if "row" in sums.starts:
            d_row = d_row + d * _to_queries(slope, group)
        if "gain" in sums.starts:
            d_gain = d_gain + d_keys * _to_queries(_value(row, chosen), group)
        d = pltpu.roll(d, (LANES - SUBLANES * group) & (LANES - 1), 1)
        total = (total[0] + d, total[1] + d * row)
        own = [
            _capture(mask, total, then)
            for mask, then in zip([here, *(here & mask for mask in beyond)], own, strict=True)
        ]
        if kind.block:
            before = [
                _capture(mask, total, then)
                for mask, then in zip([here | mask for mask in beyond], before, strict=True)
            ]
        return total, own, before, d_row, d_gain

    start = ((zero, zero), nothing, nothing[1:], zero, zero)
    total, own, before, d_row, d_gain = part.over_groups(add, start)
    for name, value in (("row", d_row), ("gain", d_gain)):
        if name in sums.starts:
            sums.add(name, chunk, value)
    if sums.near is None:
        return
    _add(sums.near, part, kind.block, own)
    if kind.block:
        of_before = [(total, own[0]), *((then, own[0]) for then in before)]
        _add(sums.near, part, 0, [(a[0] - b[0], a[1] - b[1]) for a, b in of_before])


def _tables(refs: BiasRefs, part: Part, kind: Near) -> Tables:
    assert refs.near is not None
    strip = refs.near.at[0, part.key]
    own, before = _lanes(kind.block), _lanes(max(kind.block - 1, 0))
    return [(strip[index, :, own], strip[index, :, before]) for index in range(2 + 2 * kind.rounds)]


def _lanes(block: int) -> slice:
    return slice(block * LANES, (block + 1) * LANES)


def _in_block(group: Any) -> jax.Array:
    """Return a mask `[8, R]` of the lanes of a group that use block m rather than block m - 1."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 1)
    return lane < LANES - SUBLANES * group


def _chosen(tables: Tables, here: jax.Array, kind: Near) -> list[jax.Array]:
    return [jnp.where(here, own, before) if kind.block else own for own, before in tables]


def _value(row: jax.Array, tables: list[jax.Array]) -> jax.Array:
    slope, offset, *bends = tables
    value = slope * row + offset
    for change, kink in zip(bends[::2], bends[1::2], strict=True):
        value = value + change * jnp.maximum(row, kink)
    return value


def _to_queries(x: jax.Array, group: Any) -> jax.Array:
    return pltpu.roll(x, SUBLANES * group, 1)


def _capture(mask: jax.Array, now: Moments, then: Moments) -> Moments:
    return jnp.where(mask, now[0], then[0]), jnp.where(mask, now[1], then[1])


def _add(near: Ref, part: Part, block: int, found: list[Moments]) -> None:
    strip = near.at[part.key]
    for moment in range(2):
        for index, moments in enumerate(found):
            strip[moment * (1 + ROUNDS) + index, :, _lanes(block)] += moments[moment]
