"""The parts of a tile in a kernel, with the bias tables and the kinks of each part.

A part covers 128 keys and 128 queries of a tile. Its kind (`part_lists`) selects the code that
builds its bias or computes the gradient (`for_parts`).

Shapes: S strips of 128 in a block, K kinks, N heads, R = 128, T tables of W distances, I
numbers in the lists of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fire_lm.attention.tpu.part_lists import (
    FIRST_NEAR,
    KINDS,
    KINKS,
    NEAR,
    Entry,
    Layout,
    Near,
    further_passes,
)
from fire_lm.attention.tpu.schedule import LANES, SUBLANES, KeyStrips

Ref = Any
T = TypeVar("T")


class Rows(NamedTuple):
    """The factors r, g and 1 / r of a strip of queries, `[8, R]` each, with identical rows."""

    row: jax.Array
    gain: jax.Array
    inverse: jax.Array


class Part(NamedTuple):
    """A part of a tile: 128 keys by 128 queries.

    Attributes:
      query, key: The indices of the part's strips in the tile's blocks, int32 scalars.
      first, last: The first and the last segment in which values of the part can lie.
      strips: The number of strips in a block.
      rows: The factors of the part's queries.
      unroll: Whether `over_groups` is unrolled.
    """

    query: jax.Array
    key: jax.Array
    first: jax.Array
    last: jax.Array
    strips: int
    rows: Rows
    unroll: bool

    @property
    def distances(self) -> Any:
        """The part's slice of the columns of `BiasRefs.slab` and of the skewed gradient."""
        return _strip(self.strips + self.query - self.key)

    def of_tile(self, tile: Ref) -> Ref:
        return tile.at[_strip(self.key), _strip(self.query)]

    def over_groups(self, run: Callable[[Any, T], T], carry: T) -> T:
        """Run `carry = run(group, carry)` for each group of 8 keys in order; return `carry`."""
        groups = LANES // SUBLANES
        if not self.unroll:
            return jax.lax.fori_loop(0, groups, run, carry)
        for group in range(groups):
            carry = run(group, carry)
        return carry

    def keys(self, group: Any) -> Any:
        """Return the slice of the part's keys that belongs to a group."""
        if isinstance(group, int):
            return slice(group * SUBLANES, (group + 1) * SUBLANES)
        return pl.ds(pl.multiple_of(group * SUBLANES, SUBLANES), SUBLANES)


def _strip(index: Any) -> Any:
    return pl.ds(pl.multiple_of(index * LANES, LANES), LANES)


class BiasRefs(NamedTuple):
    """References to the sections of one head's tables that a tile needs.

    The tables are packed into few arrays, because each array costs time at every step of the grid.
    Outside the kernel, the same class contains the arrays of all heads, or their block specs.

    Attributes:
      scalars: The kinks, slopes, changes of slope, and offsets, `[1, 4, K + 1]` in scalar memory.
      slab: A window of the skewed slab, `[1, R, 2 block]`. It begins one block below the distance
        between the tile's query block and its key block.
      rows: The rows r, g and 1 / r of the queries, followed by those of `near_tables.turned` if
        `near` is not None, `[3 or 19, block]`.
      parts: The lists of the tile's parts (see `part_lists`), `[1, 1, I]` in scalar memory, or None
        if the bias has no kinks.
      near: The tables of `near_tables` for each key strip, `[1, S, T, 8, W]`, or None if no part is
        built from them.
    """

    scalars: Ref
    slab: Ref
    rows: Ref
    parts: Ref | None = None
    near: Ref | None = None

    def kink(self, k: jax.Array) -> jax.Array:
        return self.scalars[0, 0, k]

    def slope(self, segment: jax.Array) -> jax.Array:
        return self.scalars[0, 1, segment]

    def change(self, k: jax.Array) -> jax.Array:
        return self.scalars[0, 2, k]

    def offset(self, segment: jax.Array) -> jax.Array:
        return self.scalars[0, 3, segment]

    def rows_of(self, query: jax.Array) -> Rows:
        rows = (self.rows[index : index + 1, _strip(query)] for index in range(3))
        return Rows(*(jnp.broadcast_to(row, (SUBLANES, LANES)) for row in rows))

    def turned_row(self, part: Part, group: Any) -> jax.Array:
        """Return the part's row r, rotated for the lanes of a group, `[8, R]`."""
        row = self.rows[pl.ds(len(Rows._fields) + group, 1), _strip(part.query)]
        return jnp.broadcast_to(row, (SUBLANES, LANES))

    def slab_of(self, part: Part) -> Ref:
        """Return a reference to the part's skewed slab, `[R, R]`, in the layout of the tile."""
        return self.slab.at[0, :, part.distances]

    def listed(self, index: Any, unroll: bool) -> Part:
        """Return the part at an index of the lists."""
        assert self.parts is not None
        entry = Entry.of(self.parts[0, 0, index])
        return Part(*entry, self.strips, self.rows_of(entry.query), unroll)

    @property
    def strips(self) -> int:
        return self.rows.shape[1] // LANES


def for_parts(
    refs: BiasRefs,
    key_strips: KeyStrips,
    unroll: bool,
    first_few: Callable[[Part, Sequence[jax.Array]], None],
    more: Callable[[Part, Sequence[jax.Array]], None],
    near: Callable[[Near, Part], None],
) -> None:
    """Process each part of a tile in which some query sees some key.

    For a part that is built from tables by distance, call `near` with its kind. For the others,
    call `first_few` with up to `KINKS` kinks, and, after the first passes of all parts, `more` with
    `KINKS` others at a time. `key_strips` is needed only for a bias without kinks; in the lists of
    the others, the parts in which no query sees a key do not count.
    """
    if refs.parts is None:
        _for_all(refs, key_strips, unroll, lambda part: first_few(part, []))
        return
    lists, layout = refs.parts, Layout.of(refs.strips)

    def each(name: str, start: Any, end: Any, run: Callable[[Part], None]) -> None:
        with jax.named_scope(f"parts.{name}"):
            jax.lax.fori_loop(start, end, lambda index, _: run(refs.listed(index, unroll)), None)

    def of_kind(index: int, run: Callable[[Part], None]) -> None:
        start, end = (layout.parts + lists[0, 0, place] for place in (index, index + 1))
        each(KINDS[index], start, end, run)

    def few(part: Part, kinks: int) -> None:
        first_few(part, [part.first + k for k in range(kinks)])

    def further(part: Part) -> None:
        passes = further_passes(part.last - part.first)
        start = part.last - KINKS * passes

        def of_pass(index: jax.Array, _: None) -> None:
            more(part, [start + KINKS * index + k for k in range(KINKS)])

        with jax.named_scope("passes.each"):
            jax.lax.fori_loop(0, passes, of_pass, None)

    for kinks in range(KINKS + 1):
        of_kind(kinks, functools.partial(few, kinks=kinks))
    start = layout.further
    each("further", start, start + lists[0, 0, start - 1], further)
    if refs.near is not None:
        for index, kind in enumerate(NEAR, FIRST_NEAR):
            of_kind(index, functools.partial(near, kind))


def _for_all(
    refs: BiasRefs, key_strips: KeyStrips, unroll: bool, run: Callable[[Part], None]
) -> None:
    """Call `run` for each part of a tile, all of whose values lie in the only segment."""
    segment = jnp.int32(0)

    def of_queries(query: jax.Array, _: None) -> None:
        with jax.named_scope("strips.each"):
            rows = refs.rows_of(query)

            @jax.named_scope("parts.each")
            def of_keys(key: jax.Array, _: None) -> None:
                run(Part(query, key, segment, segment, refs.strips, rows, unroll))

            jax.lax.fori_loop(*key_strips(query), of_keys, None)

    jax.lax.fori_loop(0, refs.strips, of_queries, None)
