"""Fingerprints of arrays, computed on the arrays' own devices, that change with every bit.

A checkpoint in a bucket is not read back to make its manifest, because that would download all of
it at every save. Instead, fingerprints are computed from the arrays that are written, and again
from the arrays that a restore has read. They do not depend on the sharding of an array: a
fingerprint is a sum, modulo 2^32, over the array's elements, each mixed with its index (by the
finaliser of MurmurHash3, a bijection of 32 bits), computed twice with different constants.
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

_SEEDS = (0x9E3779B9, 0x7F4A7C15)


def fingerprints(tree: Any) -> dict[str, jax.Array]:
    """Return two uint32 numbers for each leaf, by its path, without waiting for them."""
    leaves = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves.values()]
    mesh = next((one.mesh for one in shardings if isinstance(one, NamedSharding)), None)
    return {name: _program(mesh)(leaf) for name, leaf in leaves.items()}


def in_words(found: Mapping[str, jax.Array]) -> dict[str, str]:
    """Wait for the fingerprints and return them as 16 hexadecimal digits each."""
    host = jax.device_get(dict(found))
    return {name: "".join(f"{int(part):08x}" for part in parts) for name, parts in host.items()}


def changed_arrays(step: epath.Path, tree: Any) -> list[str]:
    """Return the paths of arrays in `tree`, read from a checkpoint, that differ from the save.

    The list is empty if the checkpoint has no fingerprints, since then its files have been checked.

    Raises:
      RunFailed: The manifest is damaged or cannot be read.
    """
    saved = array_fingerprints(step)
    if not saved:
        return []
    found = in_words(fingerprints(tree))
    return [path for path, value in found.items() if saved.get(path) != value]


@functools.cache
def _program(mesh: Any) -> Any:
    """Return the program that computes an array's fingerprint, compiled once for each shape.

    The result is replicated, so that every process of a job has the same numbers.
    """
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.jit(_fingerprint, out_shardings=sharding)


def _fingerprint(array: jax.Array) -> jax.Array:
    bits = array.dtype.itemsize * 8
    words = jax.lax.bitcast_convert_type(array, np.dtype(f"uint{bits}")).astype(jnp.uint32)
    index = _linear_index(words.shape)
    return jnp.stack(
        [
            jnp.sum(_mixed(words ^ _mixed(index + jnp.uint32(seed))), dtype=jnp.uint32)
            for seed in _SEEDS
        ]
    )


def _linear_index(shape: tuple[int, ...]) -> jax.Array:
    """Return the index of each element in the whole array, modulo 2^32."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        step = jnp.uint32(stride % 2**32)
        index = index + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * step
        stride *= shape[axis]
    return index


def _mixed(word: jax.Array) -> jax.Array:
    """Apply MurmurHash3's finaliser."""
    word = (word ^ (word >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> jnp.uint32(16))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
