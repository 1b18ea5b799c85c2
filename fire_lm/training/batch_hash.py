"""A hash of the batches that a run has seen, by which two runs can be compared.

The hash of a batch is a sum over its rows, modulo 2^32 twice, so that it is computed where the rows
are, whatever the processes and devices and whichever row lies where; rows enter with all their
tokens and segment ids by position. The step's hash is chained to the one before on the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

_SEEDS = (0x9E3779B9, 0x7F4A7C15)


def batch_hash(batch: Mapping[str, jax.Array]) -> jax.Array:
    """uint32 [2] of a batch of int32 [B, T] arrays; the order of the rows does not matter."""
    return jnp.stack([_sum_of_rows(batch, jnp.uint32(seed)) for seed in _SEEDS])


def _sum_of_rows(batch: Mapping[str, jax.Array], seed: jax.Array) -> jax.Array:
    row_B = jnp.uint32(0)
    for number, name in enumerate(sorted(batch)):
        position_1T = jnp.arange(batch[name].shape[1], dtype=jnp.uint32)[None]
        place_1T = _mixed(position_1T ^ seed + jnp.uint32(number))
        mixed_BT = _mixed(batch[name].astype(jnp.uint32) + place_1T)
        row_B = row_B + jnp.sum(mixed_BT, axis=1, dtype=jnp.uint32)
    return jnp.sum(_mixed(row_B), dtype=jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """uint32 -> uint32, a bijection whose every bit depends on every bit (MurmurHash3's end)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> jnp.uint32(shift))) * jnp.uint32(factor)
    return x ^ (x >> jnp.uint32(16))


def chained(before: str, batch: Sequence[int]) -> str:
    """16 hex digits of all batches up to now, from those `before` ('' at the start)."""
    text = f"{before} {' '.join(map(str, batch))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
