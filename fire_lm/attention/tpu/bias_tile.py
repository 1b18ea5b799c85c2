"""A tile of the bias in a kernel, which is built once per head and tile for all sequences.

Let G be the skewed slab (`schedule.skew`) and x = G r_i. If the x of a part of the tile lie in the
segments from `first` to `last`, then

    bias = g_i (slope[first] x + sum_k change[k] max(x, z_k) + offset[last]) ,   first <= k < last

This equals g_i (slope[s] x + offset[s]), where s is the segment of x, because the bias is
continuous at its kinks z. Since r_i > 0, max(x, z_k) = r_i max(G, z_k / r_i), and z_k / r_i is one
row for all keys.

A tile is built in parts of 128 keys by 128 queries. Far from the diagonal, nearly all parts have
first = last, and the bias takes two operations per value. In other parts, the first few kinks are
added together with the linear term, by separate code for each number of kinks, so that only the
result is stored. The remaining kinks follow `KINKS` at a time.

A tile is transposed: it has its keys along the sublanes and its queries along the lanes, so that
the numbers of the queries form one row, and sums over keys move nothing between lanes.

Shapes: S strips of 128 in a block, K kinks, N heads, R = 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fire_lm.attention.tpu.schedule import LANES, SUBLANES

# The base-2 logit of a masked key: its softmax weight is 0, and the sum of two does not overflow.
MASKED = -1e30

# The number of kinks that each pass over a part adds, except the first pass, which adds 0 to
# KINKS - 1. With 8, the code is twice as long, for less than 1 % fewer bundles. It is a power of 2:
# because of the sign, libtpu's compiler would query a TPU about a division.
KINKS = 4

Ref = Any
T = TypeVar("T")


class Rows(NamedTuple):
    """The factors r and g and the inverse 1 / r of a strip of queries, `[8, R]` with equal rows."""

    row: jax.Array
    gain: jax.Array
    inverse: jax.Array


class Part(NamedTuple):
    """A part of a tile: 128 keys by 128 queries.

    Attributes:
      query, key: The indices of the part's strips in the tile's blocks, int32 scalars.
      strips: The number of strips in a block.
      rows: The rows of the part's queries.
      unroll: Whether `over_keys` is unrolled.
    """

    query: jax.Array
    key: jax.Array
    strips: int
    rows: Rows
    unroll: bool

    @property
    def distances(self) -> Any:
        """The slice of the columns of `BiasRefs.slab` and of the skewed gradient."""
        return _strip(self.strips + self.query - self.key)

    def of_tile(self, tile: Ref) -> Ref:
        return tile.at[_strip(self.key), _strip(self.query)]

    def over_keys(self, run: Callable[[Any, T], T], carry: T) -> T:
        """Return `carry = run(keys, carry)` after the keys of the part, 8 at a time in order."""

        def step(group: Any, carry: T) -> T:
            return run(pl.ds(pl.multiple_of(group * SUBLANES, SUBLANES), SUBLANES), carry)

        return jax.lax.fori_loop(0, LANES // SUBLANES, step, carry, unroll=self.unroll)


def _strip(index: Any) -> Any:
    return pl.ds(pl.multiple_of(index * LANES, LANES), LANES)


class BiasRefs(NamedTuple):
    """The parts of one head's tables that a tile needs.

    They are packed into few arrays, because each array costs time at every step of the grid.
    Outside the kernel, the fields hold the arrays of all heads, or the specs of their blocks.

    Attributes:
      scalars: The kinks, slopes, changes of slope and offsets, `[1, 4, K + 1]` in scalar memory.
      slab: A window of the skewed slab, `[1, R, 2 block]`. It begins one block below the distance
        between the tile's query block and its key block.
      rows: The rows r, g and 1 / r of the queries, `[3, block]`.
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

    def rows_of(self, query: jax.Array) -> Rows:
        rows = (self.rows[index : index + 1, _strip(query)] for index in range(3))
        return Rows(*(jnp.broadcast_to(row, (SUBLANES, LANES)) for row in rows))

    def slab_of(self, part: Part) -> Ref:
        """Return the skewed slab of a part, `[R, R]`, in the layout of the tile."""
        return self.slab.at[0, :, part.distances]

    def segments_of(self, part: Part) -> tuple[jax.Array, jax.Array]:
        """Return the first and the last segment that the part may meet."""
        if self.live is None:
            return jnp.int32(0), jnp.int32(0)
        index = 2 * (part.query * part.strips + part.key)
        return self.live[0, 0, index], self.live[0, 0, index + 1]


def for_parts(
    refs: BiasRefs, on_diagonal: jax.Array, unroll: bool, run: Callable[[Part], None]
) -> None:
    """Call `run` for the parts of a tile in which some query sees some key."""
    strips = refs.rows.shape[1] // LANES

    def of_queries(query: jax.Array, _: None) -> None:
        with jax.named_scope("strips.each"):
            rows = refs.rows_of(query)

            @jax.named_scope("parts.each")
            def of_keys(key: jax.Array, _: None) -> None:
                run(Part(query, key, strips, rows, unroll))

            jax.lax.fori_loop(0, jnp.where(on_diagonal, query + 1, strips), of_keys, None)

    jax.lax.fori_loop(0, strips, of_queries, None)


def for_kinks(
    refs: BiasRefs,
    part: Part,
    first_few: Callable[[Sequence[jax.Array]], None],
    more: Callable[[Sequence[jax.Array]], None],
) -> None:
    """Call `first_few` with the part's first kinks, then `more` with each `KINKS` others."""
    if refs.live is None:
        first_few([])
        return
    first, last = refs.segments_of(part)
    count = last - first
    few = count & (KINKS - 1)

    def of_few(number: int) -> Callable[[], None]:
        @jax.named_scope(f"kinks.{number}")
        def run() -> None:
            first_few([first + k for k in range(number)])

        return run

    @jax.named_scope("kinks.more")
    def of_more(index: jax.Array, _: None) -> None:
        more([first + few + KINKS * index + k for k in range(KINKS)])

    @pl.when(count == 0)
    @jax.named_scope("kinks.none")
    def _() -> None:
        first_few([])

    @pl.when(count > 0)
    @jax.named_scope("kinks.some")
    def _() -> None:
        jax.lax.switch(few, [of_few(number) for number in range(KINKS)])
        jax.lax.fori_loop(0, count >> (KINKS.bit_length() - 1), of_more, None)


def build(refs: BiasRefs, tile: Ref, on_diagonal: jax.Array, unroll: bool) -> None:
    """Write the bias to `tile` `[keys, queries]`, except to parts in which no query sees a key."""

    def of_part(part: Part) -> None:
        row, gain, inverse = part.rows
        scale, slab, out = row * gain, refs.slab_of(part), part.of_tile(tile)

        def bends(kinks: Sequence[jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
            pairs = [(scale * refs.change(k), inverse * refs.kink(k)) for k in kinks]

            def bent(slab: jax.Array, start: jax.Array) -> jax.Array:
                for change, kink in pairs:
                    start = start + change * jnp.maximum(slab, kink)
                return start

            return bent

        def base(kinks: Sequence[jax.Array]) -> None:
            first, last = refs.segments_of(part)
            slope, offset, bent = scale * refs.slope(first), gain * refs.offset(last), bends(kinks)

            def write(keys: Any, _: None) -> None:
                out[keys] = bent(slab[keys], slab[keys] * slope + offset)

            part.over_keys(write, None)

        def more(kinks: Sequence[jax.Array]) -> None:
            bent = bends(kinks)

            def add(keys: Any, _: None) -> None:
                out[keys] = bent(slab[keys], out[keys])

            part.over_keys(add, None)

        for_kinks(refs, part, base, more)

    with jax.named_scope("bias"):
        for_parts(refs, on_diagonal, unroll, of_part)
