"""Copies of a table for the eight sublanes of a register, each shifted by its sublane.

The lanes of a row are distances. In sublane s, lane w is to hold the entry of distance w - s (see
`near_tables`). Shifts by a few lanes are slow in XLA, so on a TPU these functions are kernels. They
rotate each block of 128 lanes by 4, 2 and 1 lanes, each in half of the sublanes. The lanes that a
rotation carries around the end of a block are replaced by those of the neighbouring block.

Shapes: R rows, S = 8 sublanes, W = 256 lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from fire_lm.attention.tpu.schedule import LANES, SUBLANES

Ref = Any

PREFIX = "fire_lm_copies"  # the beginning of the kernels' names
ROWS = 64  # the rows in a block of the kernels
_BLOCKS = (slice(0, LANES), slice(LANES, 2 * LANES))


def spread(table_RW: jax.Array) -> jax.Array:
    """Return the copies `[R, S, W]` of each row: lane w of sublane s has the entry w - s.

    Lanes w < s, whose distance is negative, have other entries of the row; the attention kernels
    mask them.
    """
    rows, lanes = table_RW.shape
    shape = jax.ShapeDtypeStruct((rows, SUBLANES, lanes), table_RW.dtype)
    return _call(_spread, _spread_by_xla, table_RW, shape)


def collect(copies_RSW: jax.Array) -> jax.Array:
    """Return the sum over the copies `[R, S, W]` of each entry, `[R, W]`, the adjoint of `spread`.

    Lanes w < s do not count.
    """
    rows, _, lanes = copies_RSW.shape
    shape = jax.ShapeDtypeStruct((rows, lanes), copies_RSW.dtype)
    return _call(_collect, _collect_by_xla, copies_RSW, shape)


def _call(
    kernel: Callable[..., None],
    by_xla: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    out: jax.ShapeDtypeStruct,
) -> jax.Array:
    return jax.lax.platform_dependent(
        x, cpu=by_xla, default=functools.partial(by_kernel, kernel, out=out)
    )


def by_kernel(
    kernel: Callable[..., None], x: jax.Array, *, out: jax.ShapeDtypeStruct, interpret: bool = False
) -> jax.Array:
    """Run the kernel on blocks of rows."""

    def block(shape: tuple[int, ...]) -> pl.BlockSpec:
        return pl.BlockSpec((ROWS, *shape[1:]), lambda r: (r, *(0,) * (len(shape) - 1)))

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[0], ROWS),),
        in_specs=[block(x.shape)],
        out_specs=block(out.shape),
        out_shape=out,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name=f"{PREFIX}{kernel.__name__}",
        interpret=interpret,
    )(x)


def _spread(table: Ref, copies: Ref) -> None:
    """Write the copies of the rows `[R, W]` of a block."""
    lane, sublane = _indices()

    def of_eight(group: Any, _: None) -> None:
        first = pl.multiple_of(SUBLANES * group, SUBLANES)
        rows = [table[pl.ds(first, SUBLANES), lanes] for lanes in _BLOCKS]
        for r in range(SUBLANES):
            before, own = (
                _rotated(jnp.broadcast_to(block[r : r + 1], block.shape), right=True)
                for block in rows
            )
            copies[first + r, :, _BLOCKS[0]] = before
            copies[first + r, :, _BLOCKS[1]] = jnp.where(lane < sublane, before, own)

    jax.lax.fori_loop(0, ROWS // SUBLANES, of_eight, None)


def _collect(copies: Ref, table: Ref) -> None:
    """Write the sums over the copies `[R, S, W]` of a block."""
    lane, sublane = _indices()
    within = lane < LANES - sublane

    def of_eight(group: Any, _: None) -> None:
        first = pl.multiple_of(SUBLANES * group, SUBLANES)
        sums = [jnp.zeros((SUBLANES, LANES), jnp.float32)] * 2
        for r in range(SUBLANES):
            own, after = (_rotated(copies[first + r, :, lanes], right=False) for lanes in _BLOCKS)
            parts = jnp.where(within, own, after), jnp.where(within, after, 0.0)
            totals = [jnp.sum(part, axis=0, keepdims=True) for part in parts]
            sums = [jnp.where(sublane == r, a, b) for a, b in zip(totals, sums, strict=True)]
        for lanes, found in zip(_BLOCKS, sums, strict=True):
            table[pl.ds(first, SUBLANES), lanes] = found

    jax.lax.fori_loop(0, ROWS // SUBLANES, of_eight, None)


def _indices() -> tuple[jax.Array, jax.Array]:
    """Return the lane and the sublane of each element of a register."""
    lane, sublane = (
        jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), axis) for axis in (1, 0)
    )
    return lane, sublane


def _rotated(x_SR: jax.Array, *, right: bool) -> jax.Array:
    """Rotate sublane s by s lanes to the right, or else to the left."""
    _, sublane = _indices()
    for step in (4, 2, 1):
        turned = pltpu.roll(x_SR, step if right else LANES - step, 1)
        x_SR = jnp.where(sublane & step > 0, turned, x_SR)
    return x_SR


def _spread_by_xla(table_RW: jax.Array) -> jax.Array:
    return jnp.stack([jnp.roll(table_RW, s, axis=1) for s in range(SUBLANES)], axis=1)


def _collect_by_xla(copies_RSW: jax.Array) -> jax.Array:
    own = [jnp.pad(copies_RSW[:, s, s:], ((0, 0), (0, s))) for s in range(SUBLANES)]
    return jnp.sum(jnp.stack(own), axis=0)
