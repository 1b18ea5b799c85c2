"""The embedding, which the lookup of tokens and the head share, on a mesh.

Both uses of the table yield a gradient, each a sum over all tokens. Left to itself, the compiler
sums each of the two over the mesh before it adds them. Here every device that has tokens of its own
also has a copy of the table of its own, along a leading axis. Both gradients of a copy stay on its
device, where they are added, and one exchange sums them over the copies.

Shapes: W copies, B batch, T positions, D model, V vocab.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fire_lm.attention.terms import axes_of, parts
from fire_lm.models.layers import contract
from fire_lm.models.layouts import constrain


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def copies_of_table(
    activations: NamedSharding | None, shape: tuple[int, ...], dtype: Any, table_VD: jax.Array
) -> jax.Array:
    """Gather the embedding over `fsdp` in `dtype`; return its copies `[W, V, D]` in float32.

    `activations` is the layout of the activations `[B, T, D]`, and `shape` is `(B, T)`. There is
    one copy if they are split neither by batch nor by tokens, or not evenly.
    """
    gathered_VD = constrain(table_VD.astype(dtype), _on(activations, _rows(activations), None))
    ways = _ways(activations, shape)
    copies_WVD = jnp.broadcast_to(gathered_VD.astype(jnp.float32)[None], (ways, *table_VD.shape))
    if ways == 1 or activations is None:
        return copies_WVD
    return constrain(copies_WVD, _on(activations, _tokens(activations), _rows(activations), None))


def _copies_backward(activations, shape, dtype, _, d_WVD):
    rows, columns = _rows(activations), _columns(activations)
    if d_WVD.shape[0] == 1 or activations is None:
        return (constrain(d_WVD[0], _on(activations, rows, columns)),)
    mesh, axes = activations.mesh, _tokens(activations)

    def total(d_1VD: jax.Array) -> jax.Array:
        others = tuple(axis for axis in axes if axis != columns)
        if columns is None:
            return jax.lax.psum(d_1VD[0], others)
        if d_1VD.shape[1] % mesh.shape[columns]:
            d_VD = jax.lax.psum_scatter(d_1VD[0], columns, scatter_dimension=1, tiled=True)
            return jax.lax.psum(d_VD, others)
        # TPUs scatter rows while they sum, but not parts of a row that are narrower than a tile.
        d_VD = jax.lax.psum_scatter(d_1VD[0], columns, scatter_dimension=0, tiled=True)
        d_VD = jax.lax.psum(d_VD, others)
        return jax.lax.all_to_all(d_VD, columns, split_axis=1, concat_axis=0, tiled=True)

    exchange = jax.shard_map(
        total,
        mesh=mesh,
        in_specs=PartitionSpec(axes, rows, None),
        out_specs=PartitionSpec(rows, columns),
        check_vma=False,
    )
    return (exchange(d_WVD),)


copies_of_table.defvjp(lambda *inputs: (copies_of_table(*inputs), None), _copies_backward)


def look_up(
    activations: NamedSharding | None, copies_WVD: jax.Array, tokens_BT: jax.Array
) -> jax.Array:
    """Return the rows of the tokens, `[B, T, D]`, from the copy on each token's device."""
    if copies_WVD.shape[0] == 1 or activations is None:
        whole_VD = constrain(copies_WVD[0], _on(activations))
        return jnp.take(whole_VD, tokens_BT, axis=0)
    split = PartitionSpec(*(axes_of(activations, axis) or None for axis in range(2)))
    return jax.shard_map(
        lambda copy_1VD, tokens_BT: jnp.take(copy_1VD[0], tokens_BT, axis=0),
        mesh=activations.mesh,
        in_specs=(PartitionSpec(_tokens(activations), None, None), split),
        out_specs=PartitionSpec(*split, None),
        check_vma=False,
    )(copies_WVD, tokens_BT)


def logits_of(copies_WVD: jax.Array, x_BTD: jax.Array, slices: int = 1) -> jax.Array:
    """Return the product of the activations with the table, `[B, T, V]` float32.

    `slices` is the number of slices into which rows are split.
    """
    ways = copies_WVD.shape[0]
    if ways == 1:
        return contract("BTD,VD->BTV", x_BTD, copies_WVD[0])
    if slices > 1:
        x_RBSTD = x_BTD.reshape(
            ways // slices, -1, slices, x_BTD.shape[1] // slices, x_BTD.shape[2]
        )
        x_WBTD = jnp.swapaxes(x_RBSTD, 1, 2).reshape(ways, -1, *x_RBSTD.shape[3:])
        logits_WBTV = contract("WBTD,WVD->WBTV", x_WBTD, copies_WVD)
        logits_RSBTV = logits_WBTV.reshape(*x_RBSTD.shape[:1], slices, *logits_WBTV.shape[1:])
        return jnp.swapaxes(logits_RSBTV, 1, 2).reshape(*x_BTD.shape[:2], -1)
    x_WBTD = x_BTD.reshape(ways, -1, *x_BTD.shape[1:])
    logits_WBTV = contract("WBTD,WVD->WBTV", x_WBTD, copies_WVD)
    return logits_WBTV.reshape(*x_BTD.shape[:2], -1)


def _ways(activations: NamedSharding | None, shape: tuple[int, ...]) -> int:
    """Return the number of equal parts into which the mesh splits the tokens, at least 1."""
    if activations is None or not isinstance(activations.mesh, Mesh):
        return 1
    split = [parts(activations, axis, size) for axis, size in enumerate(shape)]
    evenly = math.prod(activations.mesh.shape[axis] for axis in _tokens(activations))
    return math.prod(split) if math.prod(split) == evenly else 1


def _tokens(activations: NamedSharding) -> tuple[str, ...]:
    """Return the mesh axes that split the tokens `[B, T]`, by row and then within a row."""
    return axes_of(activations, 0) + axes_of(activations, 1)


def _rows(activations: NamedSharding | None) -> str | None:
    """Return the mesh axis that splits the vocabulary, as in fire_lm/sharding.py."""
    return "tensor" if activations is not None and "tensor" in activations.mesh.shape else None


def _columns(activations: NamedSharding | None) -> str | None:
    """Return the mesh axis that splits the width of the table, as in fire_lm/sharding.py."""
    return "fsdp" if _rows(activations) else None


def _on(activations: NamedSharding | None, *axes: Any) -> NamedSharding | None:
    return activations and NamedSharding(activations.mesh, PartitionSpec(*axes))
