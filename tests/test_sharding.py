"""fire_lm.sharding: one table for every array; equal numbers on one device and on four."""

import dataclasses
import functools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from sample_decoders import by_path

from fire_lm import models, positions, sharding
from fire_lm.data.batches import text_weights
from fire_lm.errors import UserError
from fire_lm.hardware import absent_tpu
from fire_lm.sharding import AXES, MeshShape
from fire_lm.training import step as training_step
from fire_lm.training.compile import compile_step
from fire_lm.training.optimizer import AdamW, decay_mask
from fire_lm.training.step import init_state, summed_loss, train_step

LENGTH, BATCH, STEPS = 32, 8, 4
SIZES = {"tiny": models.size_tiny, "125m": models.size_125m, "350m": models.size_350m}
ENCODINGS = [
    (name, share)
    for name, kind in positions.encodings().items()
    for share in (False, True)
    if share or kind.embed is positions.PositionalEncoding.embed  # one for all layers
]


def mesh_of(data: int, fsdp: int, tensor: int) -> Mesh:
    devices = jax.devices()[: data * fsdp * tensor]
    return jax.make_mesh((data, fsdp, tensor), AXES, (AxisType.Auto,) * 3, devices=devices)


def plan(data: int, fsdp: int, tensor: int) -> AbstractMesh:
    return AbstractMesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3)


def abstract_state(model: models.Decoder) -> Any:
    return jax.eval_shape(
        functools.partial(init_state, model, AdamW().build(1000)), jax.random.key(0)
    )


# --- Equal numbers on every mesh


def text(mesh: Mesh) -> dict[str, jax.Array]:
    """Return a batch of which half the rows are padded: devices have unequal token counts."""
    rows = np.random.default_rng(0).integers(1, 64, [BATCH, LENGTH], np.int32)
    for row, tokens in enumerate([32, 32, 32, 32, 5, 9, 1, 17]):
        rows[row, tokens:] = 0
    return sharding.put_batch({"targets": rows, "weights": text_weights(rows)}, mesh)


def prepare(mesh: Mesh, microbatches: int) -> tuple[Any, Any]:
    """Return the initial state and the compiled step of a small float32 decoder with FIRE."""
    model = models.build_decoder(
        models.size_tiny(num_layers=2, num_heads=4, head_dim=24),
        positions.encodings()["FIRE"],
        vocab_size=64,
        train_length=LENGTH,
        dtype="float32",
    ).clone(activation_sharding=NamedSharding(mesh, sharding.ACTIVATIONS))
    # A key bias has a gradient of zero up to rounding (softmax ignores what is equal for all keys),
    # and Adam would amplify that noise to full steps: hence the large epsilon.
    optimizer = AdamW(learning_rate=1e-2, warmup_steps=0, epsilon=1e-4).build(100)
    init = functools.partial(init_state, model, optimizer)
    like = sharding.with_shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
    state = jax.jit(init, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, like))
    step = functools.partial(
        train_step, model=model, optimizer=optimizer, seed=0, z_loss=1e-3, microbatches=microbatches
    )
    batch = sharding.batch_like((BATCH, LENGTH), mesh, packed=False)
    return state(jax.random.key(0)), compile_step(step, like, batch)


def train(mesh: Mesh, microbatches: int = 1) -> dict[str, np.ndarray]:
    """Return the losses, gradient norms and final parameters of a few steps."""
    state, step = prepare(mesh, microbatches)
    steps = []
    for _ in range(STEPS):
        state, metrics = jax.block_until_ready(step(state, text(mesh)))
        steps.append(metrics)
    found = {path: np.asarray(leaf) for path, leaf in by_path(state.params).items()}
    return found | {name: np.array([m[name] for m in steps]) for name in ("loss", "grad_norm")}


@pytest.fixture(scope="module")
def on_one_device() -> dict[str, np.ndarray]:
    return train(mesh_of(1, 1, 1))


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("axes", "microbatches"),
    [
        ((2, 2, 1), 1),
        ((2, 1, 2), 2),
        pytest.param((1, 1, 1), 4, marks=pytest.mark.slow),
        pytest.param((1, 1, 4), 1, marks=pytest.mark.slow),
    ],
)
def test_one_device_and_four_compute_the_same(on_one_device, axes, microbatches):
    found = train(mesh_of(*axes), microbatches)
    assert_same(found, on_one_device)
    assert found["loss"][-1] < found["loss"][0] - 0.5  # the model has learned


def mean_of_means(
    params: Any, model: Any, targets: Any, weights: Any, pos: Any, z_loss: float, *_: Any
) -> Any:
    """Return a wrong loss: the mean of the shards' means, as if they had equally many tokens."""
    shards = model.activation_sharding.mesh.size
    parts = list(zip(jnp.split(targets, shards), jnp.split(weights, shards), strict=True))
    tokens = [jnp.sum(weight).astype(jnp.float32) for _, weight in parts]
    sums = [summed_loss(params, model, *part, pos, z_loss) for part in parts]
    mean = sum(tokens) / len(parts)
    pairs = list(zip(sums, tokens, strict=True))
    nll = sum(nll / n * mean for (_, (nll, _)), n in pairs)
    return sum(objective / n * mean for (objective, _), n in pairs), (nll, {})


@pytest.mark.slow
def test_the_comparison_sees_a_mean_of_means(on_one_device, monkeypatch):
    monkeypatch.setattr(training_step, "summed_loss", mean_of_means)
    with pytest.raises(AssertionError):
        assert_same(train(mesh_of(2, 1, 1)), on_one_device)


COMPLAINT = "Involuntary full rematerialization"
COMPILE = "import test_sharding as t; t.prepare(t.mesh_of(2, 2, 1), 1)"
SPLIT_LOOKUP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from fire_lm.models import decoder
def look_up(layout, copies, tokens):
    split = NamedSharding(layout.mesh, PartitionSpec(None, "fsdp"))
    return jnp.take(jax.lax.with_sharding_constraint(copies[0], split), tokens, axis=0)
decoder.look_up = look_up
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("before", "complaints"), [("", False), (SPLIT_LOOKUP, True)], ids=["ours", "split"]
)
def test_the_compiler_finds_an_efficient_layout(before, complaints):
    """This needs a process of its own, since conftest.py silences the compiler's warnings here."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "1"}
    command = [sys.executable, "-c", before + COMPILE]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, COMPLAINT in done.stderr) == (0, complaints), done.stderr


def test_no_row_leaves_its_device_for_its_microbatch():
    """Part m has rows m, m + M, ... of each device; each row occurs once, and nothing is sent."""
    mesh = mesh_of(2, 2, 1)
    rows = np.arange(8 * 3, dtype=np.int32).reshape(8, 3)
    batch = sharding.put_batch({"targets": rows, "segment_ids": rows + 100}, mesh)
    like = NamedSharding(mesh, PartitionSpec(None, *batch["targets"].sharding.spec))
    split = jax.jit(
        lambda batch: training_step.split_microbatches(batch, 2), out_shardings=like
    ).lower(batch)
    compiled = split.compile()
    found = compiled(batch)
    np.testing.assert_array_equal(found["targets"], [rows[0::2], rows[1::2]])
    np.testing.assert_array_equal(found["segment_ids"], found["targets"] + 100)
    sent = ("all-to-all", "all-gather", "collective-permute", "all-reduce")
    assert not [kind for kind in sent if kind in compiled.as_text()]
    by_device = {shard.device: shard.data for shard in batch["targets"].addressable_shards}
    for shard in found["targets"].addressable_shards:
        assert sorted(np.ravel(shard.data)) == sorted(np.ravel(by_device[shard.device]))


# --- The table


FIRE_ALONE = [("FIRE", False), ("FIRE", True)]


@pytest.mark.parametrize(
    ("size", "encoding", "share"),
    [*(("350m", *one) for one in ENCODINGS), *(("tiny", *one) for one in FIRE_ALONE),
     *(("125m", *one) for one in FIRE_ALONE)],
)  # fmt: skip
def test_every_array_has_exactly_one_row_and_nothing_big_is_replicated(size, encoding, share):
    """Parameters and both moments are checked on meshes of the paper's runs and with tensor.

    Weight decay acts on kernels and the embedding of the decoder, and on nothing of an encoding.
    """
    position = positions.encodings()[encoding]
    model = models.build_decoder(SIZES[size](), position, 32_128, 2048, share_position=share)
    state = abstract_state(model)
    for path in by_path(state):
        rows = [pattern for pattern, _ in sharding.TABLE if re.search(pattern, path)]
        assert len(rows) == 1, (path, rows)
    for mesh in (plan(8, 16, 1), plan(16, 16, 1), plan(128, 1, 1), plan(8, 8, 2)):
        if SIZES[size]().num_heads % mesh.shape["tensor"] == 0:
            assert replicated(state, mesh) == []
    assert {path for path, decays in by_path(decay_mask(state.params)).items() if decays} == {
        "embedding",
        *(f"layers/{name}/kernel" for name in ("query", "key", "value", "attention_out")),
        *("layers/mlp_in/kernel", "layers/mlp_out/kernel"),
    }


def replicated(state: Any, mesh: AbstractMesh) -> list[str]:
    """Return the paths of arrays above 1 MiB that fsdp or tensor, where in use, does not split."""
    planned = by_path(sharding.with_shardings(state, mesh))
    split = {axis for axis in ("fsdp", "tensor") if mesh.shape[axis] > 1}
    return [
        path
        for path, leaf in planned.items()
        if math.prod(leaf.shape) * leaf.dtype.itemsize > 2**20
        and not split <= set(leaf.sharding.spec)
    ]


@pytest.mark.parametrize("axis", ["fsdp", "tensor"])
def test_the_check_sees_an_embedding_replicated_along_one_axis(axis, monkeypatch):
    other = PartitionSpec(*(each if each != axis else None for each in ("tensor", "fsdp")))
    table = [(p, other if "embedding$" in p else spec) for p, spec in sharding.TABLE]
    monkeypatch.setattr(sharding, "TABLE", table)
    size = models.size_tiny(num_heads=4)
    state = abstract_state(models.build_decoder(size, positions.encodings()["NoPE"], 32_128, 64))
    assert "params/embedding" in replicated(state, plan(8, 8, 2))
    assert replicated(state, plan(128, 1, 1)) == []


@pytest.mark.parametrize("name", ["step", "count", "query/kernel", "key/bias", "w/embedding", "w"])
@pytest.mark.parametrize("place", ["position", "position_1", "layers/position"])
def test_parameters_of_an_encoding_are_replicated_whatever_their_names(place, name):
    path = f"params/{place}/{name}"
    assert sharding.spec_for(path, (65, 7), plan(1, 16, 4)) == PartitionSpec()


def test_only_the_table_of_learned_positions_is_split():
    """A layer's own table, such as `[layers, buckets, heads]`, is small."""
    for place in ("position", "position_1"):
        spec = sharding.spec_for(f"params/{place}/embedding", (64, 96), plan(1, 16, 4))
        assert spec == PartitionSpec("tensor", "fsdp")
    path = "params/layers/position/embedding"
    assert sharding.spec_for(path, (12, 65, 12), plan(1, 16, 4)) == PartitionSpec()


def test_two_rows_are_an_error_as_none_is(monkeypatch):
    monkeypatch.setattr(sharding, "TABLE", (*sharding.TABLE, ("embedding", PartitionSpec())))
    tree = {"embedding": jnp.ones((2, 8))}
    with pytest.raises(UserError, match=r"'embedding' \(2, 8\) .*embedding\$ and embedding"):
        sharding.tree_shardings(tree, plan(1, 1, 1))


def test_an_array_without_a_row_is_an_error():
    """It may be in a user's own mixer, so the message says how to name it."""
    message = r"'layers/adapter/kernel' \(2, 8\) .* but matches none\n.*mixer_NAME"
    with pytest.raises(UserError, match=message):
        sharding.tree_shardings(
            {"layers": {"adapter": {"kernel": jnp.ones((2, 8))}}}, plan(1, 1, 1)
        )


def test_axes_must_divide():
    path, shape = "params/layers/query/kernel", (12, 768, 12, 64)
    spec = PartitionSpec(None, "fsdp", "tensor", None)
    assert sharding.spec_for(path, shape, plan(1, 256, 4)) == spec
    with pytest.raises(
        UserError, match=r"query/kernel' \(12, 768, 12, 64\).* 8 ways .*'tensor'.* 12"
    ):
        sharding.spec_for(path, shape, plan(1, 1, 8))


# --- The shape of the mesh, and which process feeds which rows


def test_mesh_shape_fills_in_what_is_left():
    assert MeshShape().resolve(8) == (8, 1, 1)
    assert MeshShape(data=2, fsdp=-1, tensor=2).resolve(16) == (2, 4, 2)
    assert MeshShape(8, 16, 1).resolve(4) == (8, 16, 1)  # a plan for another machine
    assert sharding.make_mesh(MeshShape(2, -1, 1)).shape == {"data": 2, "fsdp": 2, "tensor": 1}


@pytest.mark.parametrize("sizes", [(0, 1, 1), (-2, 1, 1), (-1, -1, 1)])
def test_mesh_shape_refuses(sizes):
    with pytest.raises(UserError, match="sizes must be positive; at most one may be -1"):
        MeshShape(*sizes).resolve(4)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 1, 1), (-1, 3, 1), (-1, 8, 1)])
def test_mesh_must_use_exactly_the_devices_of_the_job(sizes):
    fault = r"needs \d+ devices, but this job has 4: set --gin.MeshShape"
    with pytest.raises(UserError, match=fault):
        sharding.make_mesh(MeshShape(*sizes))


@pytest.mark.parametrize(
    ("sizes", "devices", "slices", "fits"),
    [
        ((8, 16, 1), 256, 1, (16, 16, 1)),
        ((8, 16, 1), 4, 1, (1, 4, 1)),
        ((16, 1, 8), 12, 1, (2, 1, 6)),
        ((1, 16, 1), 24, 1, (2, 12, 1)),
        ((8, 16, 1), 8, 2, (2, 4, 1)),
        ((1, 1, 1), 128, 2, (128, 1, 1)),
    ],
)
def test_sizes_that_would_fit(sizes, devices, slices, fits):
    assert sharding.fitting(sizes, devices, slices) == fits and math.prod(fits) == devices


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A device that does not exist here."""

    id: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "some"
    process_index: int = 0


def test_slices_are_of_tpus(monkeypatch):
    """GPUs have a slice_index too, but no axis must stay within a slice."""
    monkeypatch.setattr(sharding, "Mesh", lambda devices, *_, **__: devices)
    gpus = [Elsewhere(number, number // 2) for number in range(4)]
    found: Any = sharding.mesh_of((1, 4, 1), gpus)
    assert found.shape == (1, 4, 1)
    with pytest.raises(UserError, match="2 slices must share the batch"):
        sharding.mesh_of((1, 4, 1), [dataclasses.replace(gpu, platform="tpu") for gpu in gpus])


def test_batch_must_divide():
    sharding.check_batch(256, 2, plan(8, 16, 4))
    with pytest.raises(UserError, match=r"240 .* 8 x 16 x 2: make BATCH_SIZE a multiple of 256"):
        sharding.check_batch(240, 2, plan(8, 16, 4))


@pytest.mark.parametrize(
    ("axes", "process_of_device", "shards"),
    [
        ((2, 2, 1), [0, 0, 0, 0], [(0, 1)]),
        ((4, 1, 1), [0, 0, 1, 1], [(0, 2), (1, 2)]),
        ((4, 1, 1), [0, 1, 0, 1], [(0, 2), (1, 2)]),  # rows 0, 2 and 1, 3: a possible torus order
        ((2, 2, 1), [3, 2, 1, 0], [(3, 4), (2, 4), (1, 4), (0, 4)]),
        ((2, 1, 2), [0, 0, 1, 1], [(0, 2), (1, 2)]),
        ((1, 1, 4), [0, 0, 1, 1], [(0, 1), (0, 1)]),  # tensor spans hosts: both feed all rows
        ((2, 1, 2), [0, 1, 0, 1], [(0, 1), (0, 1)]),
        ((2, 1, 2), [0, 1, 1, 1], None),  # processes 0 and 1 share half of their rows
        ((4, 1, 1), [0, 1, 1, 1], None),  # unequal parts
    ],
)
def test_processes_feed_equal_disjoint_parts(axes, process_of_device, shards):
    """The process of each of the mesh's four devices is made up."""
    devices = np.array([SimpleNamespace(process_index=p) for p in process_of_device])
    shape = dict(zip(sharding.AXES, axes, strict=True))
    mesh = SimpleNamespace(devices=devices.reshape(axes), shape=shape)
    if shards is not None:
        found = [sharding.process_shard(mesh, p) for p in sorted(set(process_of_device))]
        assert found == shards
    else:
        with pytest.raises(UserError, match="overlap or differ in size"):
            sharding.process_shard(mesh, 0)


@pytest.mark.parametrize(
    ("platforms", "has_tpu", "chosen"), [(None, False, "cpu"), (None, True, ""), ("tpu", False, "")]
)
def test_jax_is_kept_from_an_absent_tpu_alone(platforms, has_tpu, chosen, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(absent_tpu, "has_tpu", lambda: has_tpu)
    monkeypatch.setattr(absent_tpu, "entry_points", lambda group: ())
    told = []
    monkeypatch.setattr(absent_tpu.jax.config, "update", lambda name, value: told.append(value))
    absent_tpu.skip_absent_tpu()
    assert "".join(told) == chosen
