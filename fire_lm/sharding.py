"""The device mesh and the single table that defines how every array is sharded over it.

There are three mesh axes: `data` splits the batch and replicates the parameters, `fsdp` splits
both, and `tensor` splits the attention heads, the MLP and the vocabulary. A mesh may have a fourth
axis, `sequence`, which splits the tokens of each row and replicates the parameters.

Parameters are matched by their path in the state tree. A path that matches no row of the table, or
more than one, is an error, so a new parameter cannot be replicated by oversight. The path of an
optimizer's array ends with the path of its parameter, and the array is sharded like the parameter
along the axes that both have.
"""

from __future__ import annotations

import dataclasses
import functools
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
SEQUENCE = "sequence"
# The layouts of arrays `[B, ...]` and `[B, T, D]` on a mesh without a sequence axis; see `of_rows`.
BATCH = PartitionSpec(("data", "fsdp"))
ACTIVATIONS = PartitionSpec(("data", "fsdp"), None, None)

# The number of devices along `AXES` and, if it is more than 1, along `SEQUENCE`.
Sizes = tuple[int, ...]

# The parameters of an encoding, whatever their names; among them the table of learned positions,
# which all layers share.
POSITION = re.compile(r"(^|/)position(_\d+)?/")
_POSITION_TABLE = r"(^|(?<!layers)/)position(_\d+)?/embedding$"
# The weights of forget gates, which are as wide as the model; layers share them or have their own.
_GATES = rf"{POSITION.pattern}(\w+/)*gate_W$"
_GATES_OF_LAYERS = rf"(^|/)layers(/.*)?{_GATES}"

# The partition spec for each path pattern. The first axis of arrays under layers/ is the layer.
TABLE: tuple[tuple[str, PartitionSpec], ...] = (
    # Most encodings have only a few hundred floats per layer, which are replicated.
    (rf"^(?!.*{_POSITION_TABLE})(?!.*{_GATES}).*{POSITION.pattern}", PartitionSpec()),
    (_GATES_OF_LAYERS, PartitionSpec(None, "fsdp", "tensor")),
    (rf"^(?!.*{_GATES_OF_LAYERS}).*{_GATES}", PartitionSpec("fsdp", "tensor")),
    (_POSITION_TABLE, PartitionSpec("tensor", "fsdp")),
    *(
        (rf"^(?!.*{POSITION.pattern}).*{pattern}", spec)
        for pattern, spec in (
            (r"(^|/)embedding$", PartitionSpec("tensor", "fsdp")),
            (r"/(query|key|value)/kernel$", PartitionSpec(None, "fsdp", "tensor", None)),
            (r"/(query|key|value)/bias$", PartitionSpec(None, "tensor", None)),
            (r"/attention_out/kernel$", PartitionSpec(None, "tensor", None, "fsdp")),
            (r"/mlp_in/kernel$", PartitionSpec(None, "fsdp", "tensor")),
            (r"/mlp_in/bias$", PartitionSpec(None, "tensor")),
            (r"/mlp_out/kernel$", PartitionSpec(None, "tensor", "fsdp")),
            (r"/(attention_out|mlp_out)/bias$", PartitionSpec()),
            (r"(_norm)/(scale|bias)$", PartitionSpec()),
            (r"/mixer(_\w+)?(/(kernel|bias))?$", PartitionSpec()),  # of mixers besides attention
            (r"(^|/)(step|count)$", PartitionSpec()),
        )
    ),
)

# How decoding's arrays are sharded whose path in a mixer's state matches a pattern, as follows from
# the kernels above that compute them. All others are split by example only, `STATE`.
STATE = PartitionSpec(None, ("data", "fsdp"))
STATES: tuple[tuple[str, PartitionSpec], ...] = (
    (r"^prompt/[kv]_BNHP$", PartitionSpec(*STATE, "tensor")),
    (r"^own/[kv]_BKRNH$", PartitionSpec(*STATE, None, None, "tensor")),
)


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """The number of devices along each mesh axis.

    At most one size may be -1; that axis receives all remaining devices. A mesh whose `sequence` is
    1 has no such axis.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1

    def resolve(self, num_devices: int) -> Sizes:
        """Return the sizes for `num_devices` devices, with any -1 resolved.

        Raises:
          UserError: A size is invalid, or more than one size is -1.
        """
        sizes = [self.data, self.fsdp, self.tensor, self.sequence]
        if any(size == 0 or size < -1 for size in sizes) or sizes.count(-1) > 1:
            raise UserError(f"MeshShape {sizes}: sizes must be positive; at most one may be -1")
        known = math.prod(size for size in sizes if size > 0)
        if -1 in sizes:
            sizes[sizes.index(-1)] = max(1, num_devices // known)
        return tuple(sizes) if sizes[3] > 1 else tuple(sizes[:3])


def make_mesh(shape: MeshShape) -> Mesh:
    """Return the mesh over this job's devices.

    Raises:
      UserError: The shape is invalid or does not match the devices (see `mesh_of`).
    """
    return mesh_of(shape.resolve(jax.device_count()), jax.devices())


def mesh_of(sizes: Sizes, devices: Sequence[jax.Device], where: str = "this job") -> Mesh:
    """Return a mesh over `devices` whose axes follow the physical network where possible.

    `sizes` are the numbers of devices along the mesh axes, none of them -1. `where` is what the
    devices belong to, as it should appear in an error message.

    Raises:
      UserError: The sizes do not match the number of devices, or the data axis cannot be divided
        evenly among the TPU slices.
    """
    slices = len(
        {getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"}
    )
    check_sizes(sizes, len(devices), max(1, slices), where)
    if slices > 1:
        # Slices communicate over the hosts' network, so only gradients are summed across slices.
        arranged = mesh_utils.create_hybrid_device_mesh(
            (sizes[0] // slices, *sizes[1:]),
            (slices, *[1] * (len(sizes) - 1)),
            devices,
            allow_split_physical_axes=True,
        )
    else:
        # On a 4 x 4 x 8 torus, a mesh axis of size 16 has to use parts of more than one torus axis.
        arranged = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(arranged, _axes(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def _axes(sizes: Sizes) -> tuple[str, ...]:
    return (*AXES, SEQUENCE)[: len(sizes)]


def check_sizes(sizes: Sizes, devices: int, slices: int, where: str) -> None:
    """Check mesh sizes against a number of devices, which need not exist on this machine.

    Args:
      sizes: The number of devices along each mesh axis, none of them -1.
      devices: The number of devices in all slices.
      slices: The number of slices, at least 1.
      where: What the devices belong to, as it should appear in an error message.

    Raises:
      UserError: See `mesh_of`.
    """
    if math.prod(sizes) != devices:
        described = " x ".join(
            f"{axis}={size}" for axis, size in zip(_axes(sizes), sizes, strict=True)
        )
        fits = zip(_axes(sizes), fitting(sizes, devices, slices), strict=True)
        raise UserError(
            f"the mesh {described} needs {math.prod(sizes)} devices, but {where} has {devices}: "
            "set " + " ".join(f"--gin.MeshShape.{axis}={size}" for axis, size in fits)
        )
    if sizes[0] % slices:
        raise UserError(
            f"MeshShape.data is {sizes[0]}, but {slices} slices must share the batch evenly: "
            f"make it a multiple of {slices}"
        )


def fitting(sizes: Sizes, devices: int, slices: int = 1) -> Sizes:
    """Return mesh sizes close to `sizes` for the given number of devices.

    Only `data` is increased: it receives all remaining devices.
    """
    left, fits = devices // slices, []
    for most in reversed(sizes[1:]):
        fits.append(max(size for size in range(1, most + 1) if left % size == 0))
        left //= fits[-1]
    return (devices // math.prod(fits), *reversed(fits))


def abstract_mesh(shape: MeshShape, devices: int | None = None) -> AbstractMesh:
    """Return a mesh of the given shape without devices, for planning on another machine.

    A size of -1 is resolved for this number of devices, by default those of this job.
    """
    count = jax.device_count() if devices is None else devices
    sizes = shape.resolve(count)
    return AbstractMesh(sizes, _axes(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def slices_of_rows(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of slices into which the mesh splits each row of tokens."""
    return mesh.shape.get(SEQUENCE, 1)


def check_slices(length: int, slices: int) -> None:
    """Raise UserError unless rows of `length` tokens can be split into this number of slices."""
    if length % slices:
        raise UserError(
            f"rows of {length} tokens cannot be split evenly over MeshShape.sequence = {slices}: "
            f"choose lengths that are multiples of {slices}"
        )


def of_rows(mesh: Mesh | AbstractMesh, length: int) -> NamedSharding:
    """Return the sharding of arrays `[B, T]` for rows of T = `length` tokens.

    Raises:
      UserError: The rows cannot be split evenly along the sequence axis.
    """
    slices = slices_of_rows(mesh)
    check_slices(length, slices)
    return NamedSharding(mesh, BATCH if slices == 1 else PartitionSpec(*BATCH, SEQUENCE))


def of_activations(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of the activations `[B, T, D]` between layers."""
    split = slices_of_rows(mesh) > 1
    return NamedSharding(mesh, PartitionSpec(*BATCH, SEQUENCE, None) if split else ACTIVATIONS)


def path_name(path: Any) -> str:
    """Format a JAX key path as `layers/query/kernel`, for containers of any type."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree, keyed by their `path_name`."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def spec_for(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Return the table's partition spec for one array.

    Raises:
      UserError: The path matches no row of the table or more than one, or a mesh axis does not
        divide the array's dimension.
    """
    rows = [(pattern, spec) for pattern, spec in TABLE if re.search(pattern, path)]
    if len(rows) != 1:
        matched = " and ".join(pattern for pattern, _ in rows) or (
            "none\ncall a parameter of your own mixer mixer_NAME, mixer_NAME/kernel or "
            "mixer_NAME/bias"
        )
        raise UserError(
            f"'{path}' {shape} must match exactly one row of the sharding table, but matches "
            f"{matched}"
        )
    _, spec = rows[0]
    for dimension, axis in zip(shape, spec, strict=False):
        if axis is not None and dimension % mesh.shape[axis]:
            raise UserError(
                f"'{path}' {shape} cannot be split {mesh.shape[axis]} ways along mesh axis "
                f"'{axis}': choose a size of {axis} that divides {dimension}"
            )
    return spec


def shape_of_state(
    path: Any, shape: tuple[int, ...], mesh: Mesh | AbstractMesh | None
) -> tuple[int, ...]:
    """Return the shape on one device of an array `[L, B, ...]` at this path in a mixer's state."""
    if mesh is None:
        return shape
    rows = (spec for pattern, spec in STATES if re.search(pattern, path_name(path)))
    return NamedSharding(mesh, next(rows, STATE)).shard_shape(shape)


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
    """Return the partition spec of an optimizer's array.

    If the array belongs to a parameter, its path ends with the parameter's path. A moment with the
    same shape as the parameter is sharded like the parameter. A factored moment, such as
    Adafactor's, lacks one of the parameter's axes and is sharded along the remaining ones.
    Everything else is replicated: counts, and the placeholders for moments that are not stored.
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
    """Return the result of `with_shardings`, but without splitting any array along `fsdp`.

    Parameters that are split along this axis would have to be gathered for every token.
    """

    def whole(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = (None if axis == "fsdp" else axis for axis in leaf.sharding.spec)
        layout = NamedSharding(leaf.sharding.mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout)

    return jax.tree.map(whole, with_shardings(tree, mesh))


def check_batch(
    sequences: int,
    microbatches: int,
    mesh: Mesh | AbstractMesh,
    where: str = "",
    of_batch_size: int = 1,
) -> None:
    """Check that the sequences of every microbatch can be divided evenly among the devices.

    Args:
      where: The beginning of the message, such as "at length 64, ", or "".
      of_batch_size: BATCH_SIZE divided by `sequences`.

    Raises:
      UserError: The batch cannot be divided; the message suggests another batch size.
    """
    ways = mesh.shape["data"] * mesh.shape["fsdp"] * microbatches
    if sequences % ways:
        raise UserError(
            f"{where}a batch of {sequences} sequences cannot be split evenly over data x fsdp x "
            f"microbatches = {mesh.shape['data']} x {mesh.shape['fsdp']} x {microbatches}: "
            f"make BATCH_SIZE a multiple of {ways * of_batch_size}"
        )


def process_shard(mesh: Mesh, process: int) -> tuple[int, int]:
    """Return the index of the part of the batch that `process` supplies, and the number of parts.

    The batch is split into one block of rows for each position along data x fsdp, and a part is a
    set of such blocks. All parts have the same size. Processes whose devices hold the same blocks,
    which happens if a tensor axis spans several hosts, supply the same part.

    Raises:
      UserError: The parts of two processes overlap or differ in size.
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
            "the devices of a host are adjacent along tensor or sequence, or fill complete rows of "
            "data x fsdp"
        )
    return parts.index(tuple(sorted(blocks[process]))), len(parts)


@functools.lru_cache(maxsize=16)  # every batch asks again
def _parts_of_batch(mesh: Mesh) -> int:
    return process_shard(mesh, jax.process_index())[1]


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Assemble global arrays, sharded as in `batch_like`, from the rows that each process passes.

    Processes whose devices hold slices of the same rows pass the same complete rows.
    """
    parts = _parts_of_batch(mesh)
    return {
        name: jax.make_array_from_process_local_data(
            _layout(name, x_BT.shape[1], mesh), x_BT, (parts * x_BT.shape[0], x_BT.shape[1])
        )
        for name, x_BT in batch.items()
    }


def _layout(name: str, length: int, mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array of a batch; `tokens` has one number for each row."""
    return NamedSharding(mesh, BATCH) if name == "tokens" else of_rows(mesh, length)


def batch_like(
    shape: tuple[int, int], mesh: Mesh, *, packed: bool, unshifted: bool = False
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return ShapeDtypeStructs for the arrays that `put_batch` returns for a batch of this shape.

    With `packed`, the batch has `segment_ids`. With `unshifted`, the batch has `inputs`, which the
    model reads, and `tokens`, the number of tokens before the padding of each row.
    """
    arrays = {"targets": (shape, jnp.int32), "weights": (shape, jnp.int8)}
    if packed:
        arrays["segment_ids"] = shape, jnp.int32
    if unshifted:
        arrays |= {"inputs": (shape, jnp.int32), "tokens": ((shape[0], 1), jnp.int32)}
    return {
        name: jax.ShapeDtypeStruct(own, dtype, sharding=_layout(name, own[1], mesh))
        for name, (own, dtype) in arrays.items()
    }


def put_scalar(value: np.float32 | np.uint32, mesh: Mesh) -> jax.Array:
    """Replicate a scalar on every device.

    All processes must pass the same value.
    """
    array = np.asarray(value)
    return jax.make_array_from_callback((), NamedSharding(mesh, PartitionSpec()), lambda _: array)
