"""A hash of the batches that a run has seen, for comparing two runs.

The hash of a batch is the sum of the hashes of its rows, modulo 2^32, for each of two seeds. Each
device can therefore hash its own rows, and the result does not depend on the number of processes or
devices, or on the placement of rows. The hash of a row covers all its tokens and segment ids
together with their positions. The host chains the hash of each step to that of the previous step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from fire_lm.checkpoints.fingerprints import mixed

_SEEDS = (0x9E3779B9, 0x7F4A7C15)


def batch_hash(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return a uint32 `[2]` hash of int32 `[B, T]` arrays, independent of the order of rows."""
    return jnp.stack([_sum_of_rows(batch, jnp.uint32(seed)) for seed in _SEEDS])


def _sum_of_rows(batch: Mapping[str, jax.Array], seed: jax.Array) -> jax.Array:
    row_B = jnp.uint32(0)
    for number, name in enumerate(sorted(batch)):
        position_1T = jnp.arange(batch[name].shape[1], dtype=jnp.uint32)[None]
        place_1T = mixed(position_1T ^ seed + jnp.uint32(number))
        mixed_BT = mixed(batch[name].astype(jnp.uint32) + place_1T)
        row_B = row_B + jnp.sum(mixed_BT, axis=1, dtype=jnp.uint32)
    return jnp.sum(mixed(row_B), dtype=jnp.uint32)


def chained(before: str, batch: Sequence[int]) -> str:
    """Return 16 hex digits that identify all batches so far.

    `batch` is the hash of the latest batch. `before` is the result for all earlier batches, or ''
    if there are none.
    """
    text = f"{before} {' '.join(map(str, batch))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
