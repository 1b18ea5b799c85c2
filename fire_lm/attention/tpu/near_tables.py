"""Tables of the bias near the diagonal, indexed by distance, and their gradients.

Near the diagonal, x = psi(i - j) r_i crosses many kinks within a part of 128 keys by 128 queries,
because psi(i - j) varies widely there. At a given distance, however, x depends only on r_i, which
hardly changes within a strip of 128 keys: at most distances, x crosses no kink, and it rarely
crosses more than two. For the keys of one strip, let `first` be the segment of the smallest x at a
distance, and `last` that of the largest x. With K = last - first kinks between them,

    bias = g_i (A r_i + O + sum_t D_t max(r_i, kappa_t)) ,   0 <= t < K
    A = slope[first] psi ,   O = offset[last] ,   D_t = change[first + t] psi ,
    kappa_t = z[first + t] / psi

where everything except r_i and g_i depends only on the strip and the distance. This is the formula
of `bias_tile`, but most strips need at most `ROUNDS` terms of the sum.

The keys of a strip are processed in groups of 8; key s of group g is in sublane s. In sublane s,
lane w of a table is for distance w - s (`sublane_copies`). For group g, this is the distance from
key 8 g + s to query 8 g + w, both counted from the strip's first key. `near_tile` therefore rotates
a register of a table by 8 g lanes to obtain the layout of a tile.

Shapes: C strips of 128 keys, S = 8 sublanes, W distances of two blocks of 128, K kinks, N heads, T
= 2 + 2 ROUNDS tables, U = 2 (1 + ROUNDS) sums: 1 + ROUNDS for each of two moments.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.tpu.part_lists import ROUNDS, part_lists
from fire_lm.attention.tpu.schedule import LANES, SUBLANES, Blocks, Order, real_bounds, tiles
from fire_lm.attention.tpu.sublane_copies import collect, spread
from fire_lm.attention.tpu.tables import Tables

# The number of tables, and the number of sums that their gradients need.
TABLES = 2 + 2 * ROUNDS
SUMS = 2 * (1 + ROUNDS)

# The number of distances in a table, which covers the parts whose query strip is the key strip or
# the next strip.
DISTANCES = 2 * LANES

# The largest number of tokens for which the tables are used. They contain 96 numbers for each head
# and token, which would take too much memory for longer inputs.
LONGEST = 4096

# The kappa_t of an unused term; no r reaches it.
NEVER = 1e30


class NearTables(NamedTuple):
    """The tables of the parts near the diagonal.

    Attributes:
      by_distance_NCTW: The tables A and O, followed by D_t and kappa_t for each t.
      copies_NCTSW: The same for the sublanes of a register, each shifted by its sublane.
      crossed_CB: The most kinks that x crosses at a distance in the part of a key strip and the
        query strip with the same index (B = 0) or the next index (B = 1). The tables suffice for
        `ROUNDS`.
      first_CW: The segment of the smallest x at each distance.
      slab_W: The slab psi at each distance.
    """

    by_distance_NCTW: jax.Array
    copies_NCTSW: jax.Array
    crossed_CB: jax.Array
    first_CW: jax.Array
    slab_W: jax.Array

    @classmethod
    def of(cls, tables: Tables, blocks: Blocks) -> NearTables | None:
        """Build the tables, or return None if they cannot be used.

        The tables need a bias with kinks, at most `LONGEST` tokens, and positions 0, 1, 2, ...
        (`Blocks.in_order`): if positions restarted in each document, r would increase there.
        """
        positions = blocks.padded_length
        if not tables.kink_K.size or not blocks.in_order or positions > LONGEST:
            return None
        slab_W = jnp.pad(tables.slab_MP[0], (0, DISTANCES), mode="edge")[:DISTANCES]
        bounds_11K = real_bounds(tables.kink_K, tables.slope_KN)[None, None]
        query_CW = np.arange(0, positions, LANES)[:, None] + np.arange(DISTANCES)
        # The last key of a strip has the smallest r, and the first key the largest.
        first_CW, last_CW = (
            jnp.sum(bounds_11K < (slab_W[None] * row_CW)[..., None], axis=-1)
            for row_CW in (
                tables.row_EP[0, np.minimum(query_CW + key, positions - 1)]
                for key in (LANES - 1, 0)
            )
        )
        passed_CW = last_CW - first_CW
        most_CB = jnp.max(passed_CW.reshape(-1, 2, LANES), axis=2)
        most_CB = jnp.stack([most_CB[:, 0], jnp.max(most_CB, axis=1)], axis=1)
        by_distance_NCTW = _by_distance(tables, slab_W, first_CW, passed_CW)
        copies_RSW = spread(by_distance_NCTW.reshape(-1, DISTANCES))
        copies_NCTSW = copies_RSW.reshape(*by_distance_NCTW.shape[:3], SUBLANES, DISTANCES)
        return cls(by_distance_NCTW, copies_NCTSW, most_CB, first_CW, slab_W)

    def which_near(self, blocks: Blocks, order: Order) -> jax.Array:
        """Return the index in `NEAR` of each part, `[X, J]`, or -1 if it is not built from tables.

        X and J, the tiles and the parts of a tile, are as in `part_lists`.
        """
        query_J, key_J = np.divmod(np.arange(blocks.strips**2), blocks.strips)
        query_X1, key_X1 = blocks.strips * tiles(blocks, order)[..., None]
        key_XJ = key_X1 + key_J
        apart_XJ = query_X1 + query_J - key_XJ
        block_XJ = np.clip(apart_XJ, 0, 1)
        rounds_XJ = jnp.maximum(self.crossed_CB[key_XJ, block_XJ], 1)
        near_XJ = (rounds_XJ <= ROUNDS) & (apart_XJ == block_XJ)
        return jnp.where(near_XJ, ROUNDS * block_XJ + rounds_XJ - 1, -1)

    def gradients(
        self, sums_NCUSW: jax.Array, segments: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the gradients of slopes and offsets, `[N, K + 1]`, and c times the gradient of c.

        Args:
          sums_NCUSW: The sums of d and of d r (see `near_tile.add_near`). For each of the two, the
            sum over all values at a distance comes before the sums over the values beyond each
            kink.
          segments: The number of segments K + 1.
        """
        sums_RW = collect(sums_NCUSW.reshape(-1, SUBLANES, DISTANCES))
        by_value, by_row = jnp.split(sums_RW.reshape(*sums_NCUSW.shape[:3], DISTANCES), 2, axis=2)
        factor, _, *bends = jnp.unstack(self.by_distance_NCTW, axis=2)
        by_slab = sum(
            table * moment
            for table, moment in zip(
                (factor, *bends[::2]), jnp.unstack(by_row, axis=2), strict=True
            )
        )
        slab_11W, positive_11W = self.slab_W[None, None], self.slab_W[None, None] > 0
        per_slab_11W = -jnp.expm1(-slab_11W) / jnp.where(positive_11W, slab_11W, 1.0)
        d_rate = jnp.sum(by_slab * jnp.where(positive_11W, per_slab_11W, 0.0))
        one_hot = jax.nn.one_hot(self.first_CW, segments)

        def by_segment(beyond: jax.Array) -> jax.Array:
            # A value beyond a kink belongs to the segment after this kink, unless it is also beyond
            # the next kink.
            own = beyond - jnp.pad(beyond[:, :, 1:], ((0, 0), (0, 0), (0, 1), (0, 0)))
            found = jnp.einsum("nctw,cwk->tnk", own, one_hot, precision=jax.lax.Precision.HIGHEST)
            shifted = [
                jnp.pad(each, ((0, 0), (t, 0)))[:, :segments] for t, each in enumerate(found)
            ]
            return jnp.sum(jnp.stack(shifted), axis=0)

        return by_segment(by_row * slab_11W[None]), by_segment(by_value), d_rate


def listed_parts(
    tables: Tables, near: NearTables | None, blocks: Blocks, order: Order
) -> jax.Array:
    """Return the lists of each tile's parts (`part_lists`) for a bias with kinks."""
    near_XJ = None if near is None else near.which_near(blocks, order)
    return part_lists(tables.live_segments(blocks, order), near_XJ, blocks, order)


def turned(row_P: jax.Array) -> jax.Array:
    """Return 16 copies of the row, `[16, P]`, with each strip of copy g rotated left by 8 g.

    Copy g provides the r of each lane in a register that is later rotated right by 8 g lanes.
    """
    row_CR = row_P.reshape(-1, LANES)
    return jnp.stack(
        [jnp.roll(row_CR, -first, axis=1).ravel() for first in range(0, LANES, SUBLANES)]
    )


def _by_distance(
    tables: Tables, slab_W: jax.Array, first_CW: jax.Array, passed_CW: jax.Array
) -> jax.Array:
    kinks, heads = tables.kink_K.size, tables.slope_KN.shape[1]
    change_KN = jnp.pad(jnp.diff(tables.slope_KN, axis=0), ((0, 1 + ROUNDS), (0, 0)))
    kink_KN = jnp.broadcast_to(tables.kink_K[:, None], (kinks, heads))
    kink_KN = jnp.pad(kink_KN, ((0, 1 + ROUNDS), (0, 0)))
    offset_KN = jnp.pad(tables.offset_KN, ((0, ROUNDS), (0, 0)), mode="edge")
    columns = [
        tables.slope_KN,
        *(offset_KN[t : t + kinks + 1] for t in range(ROUNDS + 1)),
        *(table_KN[t : t + kinks + 1] for t in range(ROUNDS) for table_KN in (change_KN, kink_KN)),
    ]
    slope, *others = jnp.einsum(
        "cwk,tkn->tncw",
        jax.nn.one_hot(first_CW, kinks + 1),
        jnp.stack(columns),
        precision=jax.lax.Precision.HIGHEST,
    )
    offsets, bends = others[: ROUNDS + 1], others[ROUNDS + 1 :]
    slab_11W = slab_W[None, None]
    divisor_11W = jnp.where(slab_11W > 0, slab_11W, 1.0)
    found = [slope * slab_11W, offsets[0]]
    for t in range(ROUNDS):
        passes = passed_CW[None] > t
        found[1] = jnp.where(passes, offsets[t + 1], found[1])
        found.append(jnp.where(passes, bends[2 * t] * slab_11W, 0.0))
        found.append(jnp.where(passes, bends[2 * t + 1] / divisor_11W, NEVER))
    return jnp.stack(found, axis=2)
