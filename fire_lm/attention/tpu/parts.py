"""The parts of a tile in a kernel, with the bias tables and the kinks of each part.

A part covers 128 keys and 128 queries of a tile. Its number of kinks selects the code that builds
its bias or computes the gradient (`for_kinks`).

Shapes: S strips of 128 in a block, K kinks, N heads, R = 128, T tables of W distances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fire_lm.attention.tpu.schedule import LANES, SUBLANES

# The largest number of kinks that one pass over a part adds. With 8, the code would be twice as
# long and save less than 1 % of the bundles. The number is a power of 2 to avoid a division:
# libtpu's compiler would query a TPU about its sign.
KINKS = 4

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
      strips: The number of strips in a block.
      rows: The factors of the part's queries.
      unroll: Whether `over_groups` is unrolled.
    """

    query: jax.Array
    key: jax.Array
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
      live: The bounds on the segments in each part, `[1, 1, 2 S S]` in scalar memory (see
        `schedule.live_segments`), or None if the bias has no kinks.
      near: The tables of `near_tables` for each key strip, `[1, S, T, 8, W]`, or None if no part is
        built from them.
    """

    scalars: Ref
    slab: Ref
    rows: Ref
    live: Ref | None = None
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

    def segments_of(self, part: Part) -> tuple[jax.Array, jax.Array]:
        """Return the first and the last segment in which values of the part can lie."""
        if self.live is None:
            return jnp.int32(0), jnp.int32(0)
        index = 2 * (part.query * part.strips + part.key)
        return self.live[0, 0, index], self.live[0, 0, index + 1]


def for_parts(
    refs: BiasRefs, on_diagonal: jax.Array, unroll: bool, run: Callable[[Part], None]
) -> None:
    """Call `run` for each part of a tile that is not above the causal diagonal."""
    strips = refs.rows.shape[1] // LANES

    def of_queries(query: jax.Array, _: None) -> None:
        with jax.named_scope("strips.each"):
            rows = refs.rows_of(query)

            @jax.named_scope("parts.each")
            def of_keys(key: jax.Array, _: None) -> None:
                run(Part(query, key, strips, rows, unroll))

            jax.lax.fori_loop(0, jnp.where(on_diagonal, query + 1, strips), of_keys, None)

    jax.lax.fori_loop(0, strips, of_queries, None)


def near_mark(block: int) -> int:
    """Return the number of kinks that marks a part in `BiasRefs.live` for `near_tile.build_near`.

    The number is negative, so it differs from any real number of kinks. `block` is the argument of
    `build_near`.
    """
    return -1 - block


def for_kinks(
    refs: BiasRefs,
    part: Part,
    first_few: Callable[[Sequence[jax.Array]], None],
    more: Callable[[Sequence[jax.Array]], None],
    near: Callable[[int], None],
) -> None:
    """Call `first_few` with up to `KINKS` kinks, then `more` with `KINKS` others at a time.

    If the part is marked by `near_mark`, call `near(0)` or `near(1)` instead.
    """
    if refs.live is None:
        first_few([])
        return
    first, last = refs.segments_of(part)
    count = last - first
    later = count - 1  # all kinks but the first
    few = (later & (KINKS - 1)) + 1

    def of_few(least: int, most: int) -> None:
        """Find the number of kinks, `least` to `most`, by bisection, and call `first_few`."""
        if least == most:
            with jax.named_scope(f"kinks.{least}"):
                first_few([first + k for k in range(least)])
            return
        middle = (least + most) // 2
        with jax.named_scope(f"kinks.{least}_to_{most}"):
            jax.lax.cond(
                few <= middle,
                functools.partial(of_few, least, middle),
                functools.partial(of_few, middle + 1, most),
            )

    @jax.named_scope("kinks.more")
    def of_more(index: jax.Array, _: None) -> None:
        more([first + few + KINKS * index + k for k in range(KINKS)])

    @jax.named_scope("kinks.some")
    def some() -> None:
        of_few(1, KINKS)
        jax.lax.fori_loop(0, later >> (KINKS.bit_length() - 1), of_more, None)

    @jax.named_scope("kinks.none")
    def none() -> None:
        first_few([])

    def of_near(block: int) -> Callable[[], None]:
        return jax.named_scope(f"kinks.near_{block}")(functools.partial(near, block))

    @jax.named_scope("kinks.near")
    def nearby() -> None:
        jax.lax.cond(count == near_mark(0), of_near(0), of_near(1))

    @jax.named_scope("kinks.others")
    def others() -> None:
        jax.lax.cond(count == 0, none, nearby)

    # In this order, most parts need only one test; each test takes time.
    jax.lax.cond(count > 0, some, none if refs.near is None else others)
