"""Fingerprints of arrays, which depend on every bit and are computed on the devices.

The arrays of a checkpoint in a bucket are not read back for the manifest, because every save would
then have to download the whole checkpoint. Instead, a save computes fingerprints of the arrays that
it writes, and a restore computes fingerprints of the arrays that it reads. A fingerprint does not
depend on how an array is sharded: it consists of two sums, modulo 2^32, over the array's elements.
Each element is first mixed with its index by the finaliser of MurmurHash3, which is a bijection of
32-bit words, and the two sums use different constants.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.checkpoints.manifest import array_fingerprints
from fire_lm.sharding import leaves_by_path

_SEEDS = (0x9E3779B9, 0x7F4A7C15)


def fingerprints(tree: Any) -> dict[str, jax.Array]:
    """Return two uint32 numbers for each leaf, keyed by path, without waiting for the devices."""
    leaves = leaves_by_path(tree)
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves.values()]
    mesh = next((layout.mesh for layout in shardings if isinstance(layout, NamedSharding)), None)
    return {name: _program(mesh)(leaf) for name, leaf in leaves.items()}


def in_words(values: Mapping[str, jax.Array]) -> dict[str, str]:
    """Wait for the fingerprints and return each fingerprint as 16 hexadecimal digits."""
    host = jax.device_get(dict(values))
    return {name: "".join(f"{int(part):08x}" for part in parts) for name, parts in host.items()}


def changed_arrays(step: epath.Path, tree: Any) -> list[str]:
    """Return the paths of the arrays in `tree` that differ from the saved arrays.

    `tree` contains arrays that were read from the checkpoint in the folder `step`. If the
    checkpoint has no fingerprints, the list is empty, because the checksums of the files have been
    verified instead.

    Raises:
      RunFailed: The manifest is damaged or cannot be read.
    """
    saved = array_fingerprints(step)
    if not saved:
        return []
    words = in_words(fingerprints(tree))
    return [path for path, value in words.items() if saved.get(path) != value]


@functools.cache
def _program(mesh: Any) -> Any:
    """Return a jitted function that computes an array's fingerprint.

    The function is compiled once for each shape. Its result is replicated, so that every process of
    a job has the same numbers.
    """
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.jit(_fingerprint, out_shardings=sharding)


def _fingerprint(array: jax.Array) -> jax.Array:
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    bits = array.dtype.itemsize * 8
    words = jax.lax.bitcast_convert_type(array, np.dtype(f"uint{bits}")).astype(jnp.uint32)
    index = _linear_index(words.shape)
    return jnp.stack(
        [
            jnp.sum(mixed(words ^ mixed(index + jnp.uint32(seed))), dtype=jnp.uint32)
            for seed in _SEEDS
        ]
    )


def _linear_index(shape: tuple[int, ...]) -> jax.Array:
    """Return the linear index of each element in an array of this shape, modulo 2^32."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        step = jnp.uint32(stride % 2**32)
        index = index + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * step
        stride *= shape[axis]
    return index


def mixed(word: jax.Array) -> jax.Array:
    """Map uint32 to uint32 bijectively so that every input bit affects every output bit.

    This is the finaliser of MurmurHash3.
    """
    word = (word ^ (word >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> jnp.uint32(16))
