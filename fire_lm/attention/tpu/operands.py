"""The grid, block specs and bias arrays that the forward and backward kernels share.

The grid is (groups of sequences, heads, tiles). Two prefetched arrays, `query_X` and `key_X`, list
the query block and the key block of each tile, so the grid has no tiles above the diagonal. If
sequences are split among devices, a third array, `own_X`, lists the index of the query block among
those of the device: queries and what is computed for them have only these blocks. A fourth array
lists the index of the block that `by_diagonal` needs (see `schedule.tiles`).

Shapes: N heads, B batch, G groups of sequences, E examples with different positions (or 1), P
tokens or distances (padded), K kinks, M slabs, C strips of 128 keys, X tiles, I numbers in the
lists of a tile's parts, R = 128.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.decays import KeyDecays
from fire_lm.attention.tpu.near_tables import NearTables, listed_parts, turned
from fire_lm.attention.tpu.parts import BiasRefs
from fire_lm.attention.tpu.schedule import LANES, Blocks, Order, tiles
from fire_lm.attention.tpu.tables import Tables

# Blocks that change only once per head or key block have a single buffer, because VMEM is scarce.
SELDOM = pl.Buffered(1)


class Sides(NamedTuple):
    """The document ids `[B, 1, tokens]` of the queries and of the keys of a block."""

    query: Any
    key: Any


@dataclasses.dataclass(frozen=True)
class Operands:
    """The block specs of the kernels' arrays, for a grid whose tiles are in the given order.

    The index maps of the blocks take (group, head, tile, query_X, key_X) and, if sequences are
    split, the other two.
    """

    blocks: Blocks
    order: Order

    def by_query(self, width: int) -> pl.BlockSpec:
        """Return the block spec of an array `[B, N, width, P]` of the queries of a device."""
        shape = (self.blocks.batch, 1, width, self.blocks.tokens)
        return pl.BlockSpec(
            shape, lambda g, n, x, query, key, *own: (g, n, 0, (own[0] if own else query)[x])
        )

    def by_key(self, width: int, pipeline_mode: pl.Buffered | None = None) -> pl.BlockSpec:
        shape = (self.blocks.batch, 1, width, self.blocks.tokens)
        return pl.BlockSpec(
            shape, lambda g, n, x, query, key, *own: (g, n, 0, key[x]), pipeline_mode=pipeline_mode
        )

    def by_diagonal(self, width: int, pipeline_mode: pl.Buffered) -> pl.BlockSpec:
        """Return the block spec of an array by query that is written at tiles on the diagonal."""
        shape = (self.blocks.batch, 1, width, self.blocks.tokens)
        return pl.BlockSpec(
            shape,
            lambda g, n, x, query, key, *own: (g, n, 0, (own[1] if own else key)[x]),
            pipeline_mode=pipeline_mode,
        )

    def of_head(self, shape: tuple[int, ...]) -> pl.BlockSpec:
        """Return the block spec of an array `[G, N, ...]` with one block for each head."""
        zeros = (0,) * (len(shape) - 2)
        return pl.BlockSpec(
            (1, 1, *shape[2:]),
            lambda g, n, x, query, key, *own: (g, n, *zeros),
            pipeline_mode=SELDOM,
        )

    def segments(self, segments_B1P: jax.Array | None) -> tuple[Sides | None, Sides | None]:
        """Return the document ids and their block specs; both are None if there are no segments."""
        if segments_B1P is None:
            return None, None
        shape = (self.blocks.batch, 1, self.blocks.tokens)
        return Sides(segments_B1P, segments_B1P), Sides(
            query=pl.BlockSpec(shape, lambda g, n, x, query, key, *own: (g, 0, query[x])),
            key=pl.BlockSpec(shape, lambda g, n, x, query, key, *own: (g, 0, key[x])),
        )

    def decay(
        self,
        decay_BN2P: jax.Array | None,
        dtype: jnp.dtype,
        pipeline_mode: pl.Buffered | None = None,
    ) -> tuple[KeyDecays | None, KeyDecays | None]:
        """Return the decays and their block specs; both are None if there are no decays."""
        if decay_BN2P is None:
            return None, None
        arrays = KeyDecays.of(decay_BN2P, self.blocks, dtype)
        _, _, *rest = arrays.first.shape
        return arrays, KeyDecays(
            rows=self.by_key(arrays.rows.shape[2], pipeline_mode),
            first=pl.BlockSpec(
                (self.blocks.batch, 1, *rest),
                lambda g, n, x, query, key, *own: (g, n, 0, 0),
                memory_space=pltpu.SMEM,
            ),
        )

    def bias(
        self, tables: Tables | None, near: NearTables | None
    ) -> tuple[BiasRefs | None, BiasRefs | None]:
        """Return the arrays of the bias and their block specs; both are None if there is no bias.

        If E > 1, each example must be a separate group.
        """
        if tables is None:
            return None, None
        skewed_MRP = tables.skewed(self.blocks)
        tokens, shared = self.blocks.tokens, skewed_MRP.shape[0] == 1
        kinks, alike = tables.kink_K.size, tables.row_EP.shape[0] == 1
        kink_KN = jnp.broadcast_to(tables.kink_K[:, None], (kinks, tables.slope_KN.shape[1]))
        to_segments = ((0, 1), (0, 0))
        change_KN = jnp.diff(tables.slope_KN, axis=0)
        scalars_4KN = jnp.stack(
            [
                jnp.pad(kink_KN, to_segments),
                tables.slope_KN,
                jnp.pad(change_KN, to_segments),
                tables.offset_KN,
            ]
        )
        rows_EXP = jnp.stack([tables.row_EP, tables.gain_EP, 1 / tables.row_EP], axis=1)
        if near is not None:
            rows_EXP = jnp.concatenate([rows_EXP, turned(tables.row_EP[0])[None]], axis=1)
        parts_EX1I = listed_parts(tables, near, self.blocks, self.order) if kinks else None
        arrays = BiasRefs(
            scalars=jnp.transpose(scalars_4KN, (2, 0, 1)),
            slab=skewed_MRP,
            rows=rows_EXP,
            parts=parts_EX1I,
            near=None if near is None else near.copies_NCTSW,
        )
        specs = BiasRefs(
            scalars=pl.BlockSpec(
                (1, 4, kinks + 1),
                lambda g, n, x, query, key, *own: (n, 0, 0),
                memory_space=pltpu.SMEM,
            ),
            slab=pl.BlockSpec(
                (pl.Element(1), pl.Element(LANES), pl.Element(2 * tokens)),
                lambda g, n, x, query, key, *own: (
                    0 if shared else n,
                    0,
                    pl.multiple_of((query[x] - key[x]) * tokens, LANES),
                ),
            ),
            rows=pl.BlockSpec(
                (None, rows_EXP.shape[1], tokens),
                lambda g, n, x, query, key, *own: (0 if alike else g, 0, query[x]),
            ),
            parts=pl.BlockSpec(
                (None, 1, 1, parts_EX1I.shape[-1]),
                lambda g, n, x, query, key, *own: (0 if alike else g, x, 0, 0),
                memory_space=pltpu.SMEM,
            )
            if parts_EX1I is not None
            else None,
            near=None if near is None else self._near(near.copies_NCTSW.shape),
        )
        return arrays, specs

    def _near(self, shape: tuple[int, ...]) -> pl.BlockSpec:
        zeros = (0,) * (len(shape) - 2)
        return pl.BlockSpec(
            (1, self.blocks.strips, *shape[2:]),
            lambda g, n, x, query, key, *own: (n, key[x], *zeros),
            pipeline_mode=SELDOM,
        )

    def near_sums(self, shape: tuple[int, ...]) -> pl.BlockSpec:
        """Return the block spec of an array `[G, N, C, ...]`, by the key strips of a tile."""
        zeros = (0,) * (len(shape) - 3)
        return pl.BlockSpec(
            (1, 1, self.blocks.strips, *shape[3:]),
            lambda g, n, x, query, key, *own: (g, n, key[x], *zeros),
            pipeline_mode=SELDOM,
        )

    def call(
        self,
        kernel: Callable[..., None],
        ins: Any,
        in_specs: Any,
        *,
        out_shape: Any,
        out_specs: Any,
        scratch: Any,
        name: str,
    ) -> Any:
        """Run the kernel, in interpret mode on a CPU.

        The call is `kernel(query_X, key_X, own_X, ins, outs, scratch, unroll=...)`; if sequences
        are not split, own_X is query_X.

        The kernel receives `ins`, `outs` and `scratch` as named tuples of references. The arguments
        of this method are named tuples of the same classes, with arrays, shapes or block specs as
        fields. A field that is None is also None in the kernel. `unroll` states whether to unroll
        loops over registers, which a TPU needs but which would only slow down the compilation for
        the interpreter.

        Args:
          ins, in_specs: The input arrays, starting with the queries, and their block specs.
          out_shape, out_specs: The shapes and dtypes of the outputs, and their block specs.
          scratch: The shapes of the scratch memory.
          name: The name of the kernel in profiles.

        Returns:
          The output arrays, as a named tuple of the class of `out_shape`.
        """
        batch, heads = ins[0].shape[:2]
        tables = tuple(jnp.asarray(table_X) for table_X in tiles(self.blocks, self.order))
        grid = (batch // self.blocks.batch, heads, tables[0].size)

        def body(query_X: Any, key_X: Any, *refs: Any, unroll: bool) -> None:
            *own, ins, outs, scratch = refs
            kernel(query_X, key_X, own[0] if own else query_X, ins, outs, scratch, unroll=unroll)

        def run(*arrays: Any, interpret: bool) -> Any:
            (outs,) = pl.pallas_call(
                functools.partial(body, unroll=not interpret),
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=len(tables),
                    grid=grid,
                    in_specs=[in_specs],
                    out_specs=(out_specs,),
                    scratch_shapes=(scratch,),
                ),
                out_shape=(out_shape,),
                compiler_params=pltpu.CompilerParams(
                    dimension_semantics=("parallel", "parallel", "arbitrary")
                ),
                name=name,
                interpret=interpret,
            )(*arrays)
            return outs

        return jax.lax.platform_dependent(
            *tables,
            ins,
            cpu=functools.partial(run, interpret=True),
            default=functools.partial(run, interpret=False),
        )
