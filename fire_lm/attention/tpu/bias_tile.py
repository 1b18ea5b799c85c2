"""A tile of the bias inside a kernel: built once per head and tile, whatever the batch.

With G the skewed slab (`schedule.skew`), x = G r_i, and segments from `first` to `last`,

    bias = g_i (slope[first] x + sum_k change[k] max(x, z_k) + offset[last]) ,   first <= k < last

which is slope[s] x + offset[s] where s is the segment of x, since the bias is continuous at its
kinks z. As r_i > 0, max(x, z_k) = r_i max(G, z_k / r_i), whose second operand is one row for all
keys. A tile is done in parts of 128 keys by 128 queries. Far from the diagonal nearly all of them
have first = last: two operations a value. Otherwise the first few kinks are done with the base,
each number of them by code of its own, so that nothing but the tile itself is stored; the others
follow eight at a time.

Everything is transposed: keys along the sublanes, queries along the lanes, so that what belongs to
a query is one row, and sums over keys cost no movement between lanes.

Shapes: S strips of 128 in a block, K kinks, N heads, R = 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fire_lm.attention.tpu.schedule import LANES, SUBLANES

# In the base-2 logits of the kernels: vanishes in a softmax, and two of them do not overflow.
MASKED = -1e30

# The keys of a strip, a register's 8 at a time.
GROUPS = [slice(first, first + SUBLANES) for first in range(0, LANES, SUBLANES)]

Ref = Any


class Rows(NamedTuple):
    """r, g and 1 / r of a strip of queries, `[8, R]`: the same for all keys."""

    row: jax.Array
    gain: jax.Array
    inverse: jax.Array


class Part(NamedTuple):
    """128 keys by 128 queries of a tile.

    Attributes:
      query, key: its strips in the tile's blocks, int32 scalars.
      strips: of a block.
      rows: of its queries.
    """

    query: jax.Array
    key: jax.Array
    strips: int
    rows: Rows

    @property
    def distances(self) -> Any:
        """Where its distances are in `BiasRefs.slab`."""
        return _strip(self.strips + self.query - self.key)

    def of_tile(self, tile: Ref) -> Ref:
        return tile.at[_strip(self.key), _strip(self.query)]


def _strip(index: Any) -> Any:
    return pl.ds(pl.multiple_of(index * LANES, LANES), LANES)


class BiasRefs(NamedTuple):
    """The tables of one head, as far as a tile needs them; few, as each costs time at every step.

    Outside the kernel, the arrays of all heads, or the specs of their blocks.

    Attributes:
      scalars: `[1, 4, K + 1]` in scalar memory: kinks, slopes, changes of slope, offsets.
      slab: `[1, R, 2 block]`, a window of the skewed slab: distances from one block below that of
        the tile's blocks on.
      rows: `[3, block]`, r, g and 1 / r of the queries.
      live: `[1, 1, 2 S S]` in scalar memory, see `schedule.live_segments`; None without kinks.
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
        """`[R, R]`, as the part lies in its tile."""
        return self.slab.at[0, :, part.distances]

    def segments_of(self, part: Part) -> tuple[jax.Array, jax.Array]:
        """First and last that the part may meet."""
        if self.live is None:
            return jnp.int32(0), jnp.int32(0)
        index = 2 * (part.query * part.strips + part.key)
        return self.live[0, 0, index], self.live[0, 0, index + 1]


def for_parts(refs: BiasRefs, on_diagonal: jax.Array, run: Callable[[Part], None]) -> None:
    """`run` for the parts of a tile with keys that some query sees."""
    strips = refs.rows.shape[1] // LANES

    def of_queries(query: jax.Array, _: None) -> None:
        with jax.named_scope("strips.each"):
            rows = refs.rows_of(query)

            @jax.named_scope("parts.each")
            def of_keys(key: jax.Array, _: None) -> None:
                run(Part(query, key, strips, rows))

            jax.lax.fori_loop(0, jnp.where(on_diagonal, query + 1, strips), of_keys, None)

    jax.lax.fori_loop(0, strips, of_queries, None)


def for_kinks(
    refs: BiasRefs,
    part: Part,
    first_few: Callable[[Sequence[jax.Array]], None],
    eight_more: Callable[[Sequence[jax.Array]], None],
) -> None:
    """`first_few` of the part's first 0 to 7 kinks, then `eight_more` of eight at a time."""
    if refs.live is None:
        first_few([])
        return
    first, last = refs.segments_of(part)
    count = last - first
    few = count & 7

    def of_few(number: int) -> Callable[[], None]:
        @jax.named_scope(f"kinks.{number}")
        def run() -> None:
            first_few([first + k for k in range(number)])

        return run

    @jax.named_scope("kinks.eight")
    def more(index: jax.Array, _: None) -> None:
        eight_more([first + few + 8 * index + k for k in range(8)])

    @pl.when(count == 0)
    @jax.named_scope("kinks.none")
    def _() -> None:
        first_few([])

    @pl.when(count > 0)
    @jax.named_scope("kinks.some")
    def _() -> None:
        jax.lax.switch(few, [of_few(number) for number in range(8)])
        jax.lax.fori_loop(0, count >> 3, more, None)


def build(refs: BiasRefs, tile: Ref, on_diagonal: jax.Array) -> None:
    """Fill `tile` [keys, queries], but for parts that no query sees."""

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
            for keys in GROUPS:
                out[keys] = bent(slab[keys], slab[keys] * slope + offset)

        def more(kinks: Sequence[jax.Array]) -> None:
            bent = bends(kinks)
            for keys in GROUPS:
                out[keys] = bent(slab[keys], out[keys])

        for_kinks(refs, part, base, more)

    with jax.named_scope("bias"):
        for_parts(refs, on_diagonal, of_part)
