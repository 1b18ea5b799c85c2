"""The layout of activations on a mesh; fire_lm/sharding.py defines the layout of parameters.

The argument `activations` is the layout of the activations `[B, T, D]` between layers; None leaves
every layout to the compiler.

Shapes: B batch, T positions, D model, N heads, H head dim.
"""

from __future__ import annotations

import jax
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.attention.terms import axes_of, parts


def heads_sharding(activations: NamedSharding | None) -> NamedSharding | None:
    """Return the sharding of queries, keys and values `[B, T, N, H]`.

    The heads are split over the mesh as the weights are.
    """
    if activations is None:
        return None
    batch, tokens = activations.spec[0], axes_of(activations, 1) or None
    heads = "tensor" if "tensor" in activations.mesh.shape else None  # as in fire_lm/sharding.py
    return NamedSharding(activations.mesh, PartitionSpec(batch, tokens, heads, None))


def slices_of(activations: NamedSharding | None, length: int) -> int:
    """Return the number of slices of equal length into which rows of `length` tokens are split."""
    return 1 if activations is None else parts(activations, 1, length)


def constrain(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """Constrain `x` to `sharding`; None leaves its layout to the compiler."""
    return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)


def constrain_rows(x_BT: jax.Array, activations: NamedSharding | None) -> jax.Array:
    """Constrain `x_BT` to be split by batch and tokens in the same way as `activations`."""
    if activations is None:
        return x_BT
    rows = PartitionSpec(activations.spec[0], axes_of(activations, 1) or None)
    return constrain(x_BT, NamedSharding(activations.mesh, rows))


def replicate(x: jax.Array, like: NamedSharding | None) -> jax.Array:
    """Replicate `x` on every device of `like.mesh`; None leaves its layout to the compiler."""
    return constrain(x, None if like is None else NamedSharding(like.mesh, PartitionSpec()))
