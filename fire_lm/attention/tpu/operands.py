"""What forward and backward kernels share: grid, blocks of the arrays, tables of a bias.

The grid is (groups of sequences, heads, tiles); which blocks a tile joins stands in two tables
that the kernels are started with, so that tiles above the diagonal do not exist.

Shapes: N heads, B batch, P positions and distances (padded), K kinks, M slabs, X tiles, R = 128.
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

from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.tpu.schedule import LANES, Blocks, Order, live_segments, skew, tiles


class Bias(NamedTuple):
    """`CommonBias` in base 2, padded to whole blocks, with the skewed slab beside it."""

    tables: CommonBias
    skewed_MRP: jax.Array

    @classmethod
    def of(cls, tables: CommonBias) -> Bias:
        return cls(tables, skew(tables.slab_MP))


@dataclasses.dataclass(frozen=True)
class Operands:
    """Blocks for a grid of `order`; index maps take (group, head, tile, query_X, key_X)."""

    blocks: Blocks
    order: Order

    def by_query(self, width: int) -> pl.BlockSpec:
        """Of `[N, B, width, P]`."""
        shape = (1, self.blocks.batch, width, self.blocks.tokens)
        return pl.BlockSpec(shape, lambda g, n, x, query, key: (n, g, 0, query[x]))

    def by_key(self, width: int) -> pl.BlockSpec:
        shape = (1, self.blocks.batch, width, self.blocks.tokens)
        return pl.BlockSpec(shape, lambda g, n, x, query, key: (n, g, 0, key[x]))

    def of_head(self, shape: tuple[int, ...]) -> pl.BlockSpec:
        """Of `[G, N, ...]`, whole for all tiles of a head."""
        zeros = (0,) * (len(shape) - 2)
        return pl.BlockSpec((1, 1, *shape[2:]), lambda g, n, x, query, key: (g, n, *zeros))

    def segments(self) -> list[pl.BlockSpec]:
        """Of `[B, 1, P]`, once for the queries and once for the keys."""
        shape = (self.blocks.batch, 1, self.blocks.tokens)
        return [
            pl.BlockSpec(shape, lambda g, n, x, query, key: (g, 0, query[x])),
            pl.BlockSpec(shape, lambda g, n, x, query, key: (g, 0, key[x])),
        ]

    def bias(self, bias: Bias) -> tuple[list[jax.Array], list[pl.BlockSpec]]:
        """Arrays and blocks in the order of `BiasRefs`."""
        tables, skewed_MRP = bias
        tokens, shared = self.blocks.tokens, skewed_MRP.shape[0] == 1

        def window(before: int) -> pl.BlockSpec:
            return pl.BlockSpec(
                (1, LANES, tokens),
                lambda g, n, x, query, key: (
                    0 if shared else n,
                    0,
                    jnp.maximum(query[x] - key[x] - before, 0),
                ),
            )

        def scalars(width: int, index: Callable[..., Any]) -> pl.BlockSpec:
            return pl.BlockSpec((1, 1, width), index, memory_space=pltpu.SMEM)

        kinks = tables.kink_K.size
        of_head = scalars(kinks + 1, lambda g, n, x, query, key: (n, 0, 0))
        row = pl.BlockSpec((1, tokens), lambda g, n, x, query, key: (0, query[x]))
        arrays = [tables.slope_KN.T[:, None], tables.offset_KN.T[:, None]]
        arrays += [skewed_MRP, skewed_MRP, tables.row_P[None], tables.gain_P[None]]
        specs = [of_head, of_head, window(0), window(1), row, row]
        if kinks:
            live = live_segments(tables, self.blocks, self.order)
            arrays += [
                tables.kink_K[None, None],
                jnp.diff(tables.slope_KN, axis=0).T[:, None],
                live,
            ]
            specs += [
                scalars(kinks, lambda g, n, x, query, key: (0, 0, 0)),
                scalars(kinks, lambda g, n, x, query, key: (n, 0, 0)),
                scalars(live.shape[2], lambda g, n, x, query, key: (x, 0, 0)),
            ]
        return arrays, specs

    def call(
        self,
        kernel: Callable[..., None],
        ins: list[Any],
        in_specs: list[pl.BlockSpec],
        *,
        out_shape: list[jax.ShapeDtypeStruct],
        out_specs: list[pl.BlockSpec],
        scratch: list[Any],
        name: str,
    ) -> Any:
        """Runs `kernel`; on a CPU step by step in XLA, for tests."""
        heads, batch = ins[0].shape[:2]
        query_X, key_X = tiles(self.blocks, self.order)
        grid = (batch // self.blocks.batch, heads, query_X.size)
        tables = (jnp.asarray(query_X), jnp.asarray(key_X))

        def run(*arrays: jax.Array, interpret: bool) -> Any:
            return pl.pallas_call(
                kernel,
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=2,
                    grid=grid,
                    in_specs=in_specs,
                    out_specs=out_specs,
                    scratch_shapes=scratch,
                ),
                out_shape=out_shape,
                compiler_params=pltpu.CompilerParams(
                    dimension_semantics=("parallel", "parallel", "arbitrary")
                ),
                name=name,
                interpret=interpret,
            )(*arrays)

        return jax.lax.platform_dependent(
            *tables,
            *ins,
            cpu=functools.partial(run, interpret=True),
            default=functools.partial(run, interpret=False),
        )
