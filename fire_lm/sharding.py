"""The device mesh and the one table that lays every array out on it.

Mesh axes: `data` replicates parameters and splits the batch, `fsdp` splits both, `tensor` splits
heads and the MLP. Parameters are matched by their path in the state tree; a path that matches no
row of the table, or two, is an error, so a new parameter cannot be replicated by oversight. The
optimizer's arrays also carry the path of their parameter, and are laid out like it along the axes
that they share with it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from fire_lm.errors import UserError

AXES = ("data", "fsdp", "tensor")
BATCH = PartitionSpec(("data", "fsdp"))
ACTIVATIONS = PartitionSpec(("data", "fsdp"), None, None)

# Path pattern -> spec. The layer axis of arrays under layers/ comes first.
TABLE: tuple[tuple[str, PartitionSpec], ...] = (
    # A few hundred floats per layer are replicated; a table of learned positions is not.
    (r"(^|/)position(_\d+)?/(?!embedding$)", PartitionSpec()),
    (r"(^|/)embedding$", PartitionSpec("tensor", "fsdp")),
    (r"/(query|key|value)/kernel$", PartitionSpec(None, "fsdp", "tensor", None)),
    (r"/(query|key|value)/bias$", PartitionSpec(None, "tensor", None)),
    (r"/attention_out/kernel$", PartitionSpec(None, "tensor", None, "fsdp")),
    (r"/mlp_in/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"/mlp_in/bias$", PartitionSpec(None, "tensor")),
    (r"/mlp_out/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"/(attention_out|mlp_out)/bias$", PartitionSpec()),
    (r"(_norm)/(scale|bias)$", PartitionSpec()),
    (r"(^|/)(step|count)$", PartitionSpec()),
)


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """The number of devices along each mesh axis; -1 (on one axis at most) takes the rest."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def resolve(self, num_devices: int) -> tuple[int, int, int]:
        """Return the three sizes for `num_devices` devices, with -1 filled in."""
        sizes = [self.data, self.fsdp, self.tensor]
        if any(size == 0 or size < -1 for size in sizes) or sizes.count(-1) > 1:
            raise UserError(f"MeshShape {sizes}: sizes must be positive; at most one may be -1")
        known = math.prod(size for size in sizes if size > 0)
        if -1 in sizes:
            sizes[sizes.index(-1)] = max(1, num_devices // known)
        return sizes[0], sizes[1], sizes[2]


def make_mesh(shape: MeshShape) -> Mesh:
    """Return the mesh over this job's devices, whose number must be exactly that of the shape."""
    return mesh_of(shape.resolve(jax.device_count()), jax.devices())


def mesh_of(
    sizes: tuple[int, int, int], devices: Sequence[jax.Device], where: str = "this job"
) -> Mesh:
    """Return the mesh over `devices`, with its axes along the physical network's where possible."""
    slices = len(
        {getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"}
    )
    if math.prod(sizes) != len(devices):
        described = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        fits = zip(AXES, fitting(sizes, len(devices), max(1, slices)), strict=True)
        raise UserError(
            f"mesh {described} needs {math.prod(sizes)} devices, {where} has {len(devices)}: set "
            + " ".join(f"--gin.MeshShape.{axis}={size}" for axis, size in fits)
        )
    if slices > 1:
        if sizes[0] % slices:
            raise UserError(
                f"MeshShape.data is {sizes[0]}, but {slices} slices must share the batch evenly: "
                f"make it a multiple of {slices}"
            )
        # Slices communicate over the hosts' network, so only gradients are summed across them.
        arranged = mesh_utils.create_hybrid_device_mesh(
            (sizes[0] // slices, *sizes[1:]),
            (slices, 1, 1),
            devices,
            allow_split_physical_axes=True,
        )
        return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * 3)
    # On a torus of 4 x 4 x 8, a mesh axis of 16 has to use parts of more than one torus axis.
    arranged = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * 3)


def fitting(sizes: tuple[int, int, int], devices: int, slices: int = 1) -> tuple[int, int, int]:
    """Return mesh sizes near `sizes` for a number of devices.

    Neither `tensor` nor `fsdp` grows; `data` takes the rest.
    """
    left = devices // slices
    tensor = max(size for size in range(1, sizes[2] + 1) if left % size == 0)
    fsdp = max(size for size in range(1, sizes[1] + 1) if left // tensor % size == 0)
    return devices // (tensor * fsdp), fsdp, tensor


def abstract_mesh(shape: MeshShape) -> AbstractMesh:
    """Return a mesh of the same shape without devices, for planning on another machine."""
    return AbstractMesh(shape.resolve(jax.device_count()), AXES, axis_types=(AxisType.Auto,) * 3)


def path_name(path: Any) -> str:
    """Return a JAX key path as `layers/query/kernel`, whatever containers it leads through."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def spec_for(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Return the table's spec for one array.

    Raises:
      ValueError: Not exactly one row of the table matches the path.
      UserError: A mesh axis does not divide the array's dimension.
    """
    rows = [(pattern, spec) for pattern, spec in TABLE if re.search(pattern, path)]
    if len(rows) != 1:
        found = " and ".join(pattern for pattern, _ in rows) or "none"
        raise ValueError(
            f"'{path}' {shape} must match exactly one row of the sharding table, but matches "
            f"{found}"
        )
    _, spec = rows[0]
    for dimension, axis in zip(shape, spec, strict=False):
        if axis is not None and dimension % mesh.shape[axis]:
            raise UserError(
                f"'{path}' {shape} cannot be split {mesh.shape[axis]} ways along mesh axis "
                f"'{axis}': choose a size of {axis} that divides {dimension}"
            )
    return spec


def tree_shardings(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Return a NamedSharding for every array (or ShapeDtypeStruct) of `tree`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    shapes = {path_name(path): leaf.shape for path, leaf in leaves}
    params = {name: shape for name, shape in shapes.items() if name.startswith(_PARAMS)}
    specs = [
        _state_spec(name, shape, params, mesh)
        if name.startswith(_OPTIMIZER)
        else spec_for(name, shape, mesh)
        for name, shape in shapes.items()
    ]
    return jax.tree.unflatten(structure, [NamedSharding(mesh, spec) for spec in specs])


_PARAMS, _OPTIMIZER = "params/", "opt_state/"  # path prefixes in a training state


def _state_spec(
    name: str,
    shape: tuple[int, ...],
    params: Mapping[str, tuple[int, ...]],
    mesh: Mesh | AbstractMesh,
) -> PartitionSpec:
    """Return the layout of an optimizer's array, whose path ends with its parameter's, if any.

    A moment of the parameter's shape is laid out like the parameter. A factored moment, such as
    Adafactor's, lacks one of the parameter's axes and is laid out along the others. Everything else
    is replicated: counts, and the placeholders of moments that are not kept.
    """
    parts = name.split("/")
    own = (_PARAMS + "/".join(parts[start:]) for start in range(1, len(parts)))
    param = next((path for path in own if path in params), None)
    if param is None:
        return PartitionSpec()
    of_param = params[param]
    spec = spec_for(param, of_param, mesh)
    if shape == of_param:
        return spec
    axes = [*spec, *(None for _ in range(len(of_param) - len(spec)))]
    for left_out in range(len(of_param)):
        if shape == of_param[:left_out] + of_param[left_out + 1 :]:
            return PartitionSpec(*axes[:left_out], *axes[left_out + 1 :])
    return PartitionSpec()


def with_shardings(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Return the arrays of `tree` as ShapeDtypeStructs that carry the table's shardings."""
    return jax.tree.map(
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
        tree,
        tree_shardings(tree, mesh),
    )


def decoding_layout(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Return the same as `with_shardings`, but with no array split along `fsdp`.

    Parameters that are split there would have to be gathered for every token.
    """

    def whole(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = (None if axis == "fsdp" else axis for axis in leaf.sharding.spec)
        layout = NamedSharding(leaf.sharding.mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout)

    return jax.tree.map(whole, with_shardings(tree, mesh))


def check_batch(batch_size: int, microbatches: int, mesh: Mesh | AbstractMesh) -> None:
    """Check that each device gets equally many whole sequences of every microbatch."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"] * microbatches
    if batch_size % ways or batch_size < ways:
        raise UserError(
            f"batch of {batch_size} sequences cannot be split evenly over data x fsdp x "
            f"microbatches = {mesh.shape['data']} x {mesh.shape['fsdp']} x {microbatches}: "
            f"make BATCH_SIZE a multiple of {ways}"
        )


def process_shard(mesh: Mesh, process: int) -> tuple[int, int]:
    """Return (index, count): which of `count` equal parts of the batch `process` feeds.

    The batch is split into one block of rows per position along data x fsdp; a part is a set of
    such blocks. Processes whose devices hold the same blocks (a tensor axis that spans hosts) feed
    the same part.
    """
    blocks: dict[int, set[int]] = {}
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    for block, devices in enumerate(mesh.devices.reshape(ways, -1)):
        for device in devices:
            blocks.setdefault(device.process_index, set()).add(block)
    parts = sorted({tuple(sorted(held)) for held in blocks.values()})
    if sum(map(len, parts)) != ways or len(set(map(len, parts))) != 1:
        raise UserError(
            "the hosts' parts of the batch overlap or differ in size: choose mesh sizes such that "
            "the devices of a host lie together along tensor, or fill whole rows of data x fsdp"
        )
    return parts.index(tuple(sorted(blocks[process]))), len(parts)


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Assemble global arrays, split by `BATCH`, from the rows that each process passes."""
    sharding = NamedSharding(mesh, BATCH)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


def batch_like(
    shape: tuple[int, int], mesh: Mesh, *, packed: bool, unshifted: bool = False
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and layouts that `put_batch` gives a batch of this shape.

    With `unshifted`, the batch also has `inputs` (what the model reads) and `tokens` (the number of
    tokens in each row before its padding).
    """
    dtypes = {"targets": jnp.int32, "weights": jnp.int8}
    if packed:
        dtypes["segment_ids"] = jnp.int32
    if unshifted:
        dtypes["inputs"] = jnp.int32
    layout = NamedSharding(mesh, BATCH)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=layout) for name, dtype in dtypes.items()
    }
    if unshifted:
        batch["tokens"] = jax.ShapeDtypeStruct((shape[0], 1), jnp.int32, sharding=layout)
    return batch


def put_scalar(value: float, mesh: Mesh) -> jax.Array:
    """Put a value on every device as float32 []; all processes must pass the same value."""
    array = np.float32(value)
    return jax.make_array_from_callback((), NamedSharding(mesh, PartitionSpec()), lambda _: array)
