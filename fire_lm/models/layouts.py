"""The layout of activations on a mesh; fire_lm/sharding.py defines the layout of parameters.

The argument `activations` is the layout of the activations `[B, T, D]` between layers; None leaves
every layout to the compiler.

Shapes: B batch, T positions, D model, N heads, H head dim, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def heads_sharding(activations: NamedSharding | None) -> NamedSharding | None:
    """Return the sharding of queries, keys and values `[B, T, N, H]`.

    The heads are split over the mesh as the weights are.
    """
    if activations is None:
        return None
    batch = activations.spec[0]
    heads = "tensor" if "tensor" in activations.mesh.shape else None  # as in fire_lm/sharding.py
    return NamedSharding(activations.mesh, PartitionSpec(batch, None, heads, None))


def constrain(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """Constrain `x` to `sharding`; None leaves its layout to the compiler."""
    return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)


def constrain_rows(x_BT: jax.Array, activations: NamedSharding | None) -> jax.Array:
    """Constrain `x_BT` to be split by batch in the same way as `activations`."""
    if activations is None:
        return x_BT
    rows = PartitionSpec(activations.spec[0], None)
    return constrain(x_BT, NamedSharding(activations.mesh, rows))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather_table(activations: NamedSharding | None, dtype: Any, table_VD: jax.Array) -> jax.Array:
    """Gather the embedding over the mesh axis "fsdp"; return float32 values, rounded to `dtype`.

    The embedding is gathered once, in `dtype`, for both the lookup and the head. Each of the two
    yields a gradient that is a sum over the mesh; the compiler computes each sum before it adds the
    two gradients.
    """
    table_VD = constrain(table_VD.astype(dtype), _of_table(activations, None))
    return table_VD.astype(jnp.float32)


def _gather_table_backward(activations, dtype, _, gradient_VD):
    return (constrain(gradient_VD, _of_table(activations, "fsdp")),)


gather_table.defvjp(lambda *inputs: (gather_table(*inputs), None), _gather_table_backward)


def _of_table(activations: NamedSharding | None, columns: str | None) -> NamedSharding | None:
    """Return the sharding of the embedding, with its width split over the mesh axis `columns`.

    The vocabulary is split as in fire_lm/sharding.py.
    """
    if activations is None or "tensor" not in activations.mesh.shape:
        return activations and NamedSharding(activations.mesh, PartitionSpec())
    return NamedSharding(activations.mesh, PartitionSpec("tensor", columns))


def replicate(x: jax.Array, like: NamedSharding | None) -> jax.Array:
    """Replicate `x` on every device of `like.mesh`; None leaves its layout to the compiler."""
    return constrain(x, None if like is None else NamedSharding(like.mesh, PartitionSpec()))
