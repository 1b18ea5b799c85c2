"""Queries that are dealt to the devices among which each sequence is split.

Causal attention costs a query as much as the keys before it. If each of n devices kept the queries
of its slice, the last would compute almost twice as many tiles as the average. For the kernels,
each slice is therefore cut in half, and the 2 n halves are dealt such that device d has those with
the indices d and 2 n - 1 - d, the one with the even index first: all devices then have equally many
tiles. Keys and values are gathered from all devices, so only queries, outputs and their gradients
move.

All functions must be called inside a `shard_map`; `axis` is the mesh axis. The last axis of each
array is that of tokens.

Shapes: P tokens of a sequence (padded), U of a slice.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention.tpu.schedule import Blocks, holder, last_half


def dealt(x_U: jax.Array, blocks: Blocks) -> jax.Array:
    """Return the two halves that this device computes, for its slice of a sequence."""
    return _exchanged(x_U, blocks, to_holder=True)


def returned(x_U: jax.Array, blocks: Blocks) -> jax.Array:
    """Return this device's slice of a sequence, for its two halves."""
    return _exchanged(x_U, blocks, to_holder=False)


def _exchanged(x_U: jax.Array, blocks: Blocks, to_holder: bool) -> jax.Array:
    assert blocks.axis is not None
    halves = []
    for parity, half in enumerate(jnp.split(x_U, 2, axis=-1)):
        pairs = [(d, holder(2 * d + parity, blocks.slices)) for d in range(blocks.slices)]
        pairs = pairs if to_holder else [(there, here) for here, there in pairs]
        halves.append(jax.lax.ppermute(half, blocks.axis, pairs))
    return jnp.concatenate(halves, axis=-1)


def gathered(x_U: jax.Array, blocks: Blocks) -> jax.Array:
    """Return the complete sequence from the slices of all devices."""
    assert blocks.axis is not None
    return jax.lax.all_gather(x_U, blocks.axis, axis=x_U.ndim - 1, tiled=True)


def summed(x_P: jax.Array, blocks: Blocks, dtype: jnp.dtype) -> jax.Array:
    """Return this device's slice of the sum over all devices, whose terms are rounded to `dtype`.

    The devices exchange slices and add them in float32. XLA turns a reduction of float32 that is
    rounded afterwards into one of `dtype`, which is less exact and moves twice as many bytes.

    Keys after the last query of a device have no gradient from it; the kernel does not write it.
    """
    assert blocks.axis is not None
    seen_P = jnp.arange(x_P.shape[-1]) < _half(blocks) * (
        1 + last_half(_device(blocks), blocks.slices)
    )
    x_P = jnp.where(jnp.expand_dims(seen_P, tuple(range(x_P.ndim - 1))), x_P, 0.0)
    x_CU = jnp.moveaxis(x_P.reshape(*x_P.shape[:-1], blocks.slices, -1), -2, 0)
    own_CU = jax.lax.all_to_all(x_CU.astype(dtype), blocks.axis, 0, 0, tiled=True)
    return jnp.sum(own_CU, axis=0, dtype=jnp.float32).astype(dtype)


def placed(x_U: jax.Array, blocks: Blocks) -> jax.Array:
    """Return a sequence with the values of this device's queries, and 0 for all others."""
    device, half = _device(blocks), _half(blocks)
    last = last_half(device, blocks.slices)
    even = jnp.where(device % 2 == 0, device, last)
    out = jnp.zeros((*x_U.shape[:-1], blocks.padded_length), x_U.dtype)
    for index, own in zip((even, device + last - even), jnp.split(x_U, 2, axis=-1), strict=True):
        out = jax.lax.dynamic_update_slice_in_dim(out, own, index * half, axis=out.ndim - 1)
    return out


def _device(blocks: Blocks) -> Any:
    return jax.lax.axis_index(blocks.axis)


def _half(blocks: Blocks) -> int:
    return blocks.padded_length // (2 * blocks.slices)
