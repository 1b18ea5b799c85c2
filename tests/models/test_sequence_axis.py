"""Rows split along the mesh axis `sequence`: the same losses and gradients as whole rows."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from started_together import finish, start_together

from fire_lm import sharding
from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.generation import Greedy
from fire_lm.generation.programs import call_for
from fire_lm.models import (
    Attention,
    InfiniAttention,
    Layers,
    build_decoder,
    segment_positions,
    size_tiny,
)
from fire_lm.positions import encodings
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.sharding import MeshShape, mesh_of
from fire_lm.training.step import summed_loss

LENGTH, VOCAB, HEADS, WIDTH = 512, 32, 2, 64


def kind(name: str) -> Any:
    return encodings()[name]


def model_of(position: Any, attention: Any = "blockwise", **settings: Any) -> Any:
    repeated = len(position) if isinstance(position, tuple) else 1
    size = size_tiny(num_layers=repeated, num_heads=HEADS, head_dim=WIDTH, mlp_size=16)
    settings = {"dtype": "float32", "attention": attention} | settings
    return build_decoder(size, position, VOCAB, train_length=LENGTH, **settings)


@functools.cache
def batch(packed: bool, rows: int = 2) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Return targets, their weights and, if documents are packed, the documents."""
    rng = np.random.default_rng(0)
    targets, weights = rng.integers(1, VOCAB, (2, rows, LENGTH), np.int32)
    if not packed:
        return jnp.asarray(targets), jnp.asarray(weights), None
    places = np.arange(LENGTH)[None, :, None]
    starts = places >= np.array([[100, 101, 300], [LENGTH] * 3])[:rows, None]
    return jnp.asarray(targets), jnp.asarray(weights), jnp.asarray(starts.sum(2, dtype=np.int32))


def numbers(model: Any, shape: MeshShape | None, packed: bool = False, rows: int = 2) -> Any:
    """Return the loss and its gradient on a mesh, or on one device."""
    inputs: Any = batch(packed, rows)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens, tokens)["params"]
    if shape is not None:
        devices = jax.devices()[: shape.data * shape.fsdp * shape.tensor * shape.sequence]
        mesh = mesh_of(shape.resolve(len(devices)), devices)
        model = model.clone(activation_sharding=sharding.of_activations(mesh))
        layouts = sharding.with_shardings({"params": params}, mesh)["params"]
        params = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), params, layouts)
        inputs = jax.tree.map(lambda x: jax.device_put(x, sharding.of_rows(mesh, LENGTH)), inputs)

    def loss(params: Any, targets: Any, weights: Any, segments: Any) -> Any:
        pos = model.resampling.evaluation_positions(LENGTH)
        pos = pos if segments is None else segment_positions(pos, segments)
        return summed_loss(params, model, targets, weights, pos, 1e-3, segments)[0]

    program = jax.jit(jax.value_and_grad(loss)).lower(params, *inputs).compile()
    return program(params, *inputs)


def assert_same(found: Any, wanted: Any) -> None:
    """Compare to float32 rounding, relative to each array's largest number."""
    (loss, gradient), (its_loss, its_gradient) = found, wanted
    np.testing.assert_allclose(loss, its_loss, rtol=1e-6)
    largest = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(its_gradient))

    def check(path: Any, ours: Any, theirs: Any) -> None:
        scale = max(float(jnp.max(jnp.abs(theirs))), 1e-3 * largest)
        error = float(np.max(np.abs(np.asarray(ours) - np.asarray(theirs))))
        assert error <= 2e-5 * scale, (jax.tree_util.keystr(path), error, scale)

    jax.tree_util.tree_map_with_path(check, gradient, its_gradient)


MIXED = (
    Layers(kind("FIRE"), window=100),
    kind("RoPE"),
    Layers(kind("FoX"), chunk=100),
    kind("DAPE"),
)
RANDOM = RandomizedPositions(max_length=2 * LENGTH)
WHOLE, PACKED = False, True
FOUR = MeshShape(1, 1, 1, 4)
CASES: dict[str, tuple[Any, MeshShape, bool, dict[str, Any]]] = {
    "log_n": (kind("FIRE"), MeshShape(2, 1, 1, 2), PACKED, {"log_n": LogN()}),
    "mixed": (MIXED, FOUR, PACKED, {"scan_layers": False}),
    "random": (
        kind("ALiBi"),
        MeshShape(1, 2, 1, 2),
        WHOLE,
        {"resampling": RANDOM, "remat": "full"},
    ),
    "learned": (kind("Learned"), MeshShape(1, 1, 2, 2), WHOLE, {"share_position": True}),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", CASES)
def test_slices_of_rows_compute_the_same(name):
    position, shape, packed, settings = CASES[name]
    model = model_of(position, **settings)
    rows = shape.data * shape.fsdp
    assert_same(numbers(model, shape, packed, rows), numbers(model, None, packed, rows))


def test_a_mixer_that_needs_whole_rows_is_refused():
    mesh, tokens = mesh_of((1, 1, 1, 4), jax.devices()), jnp.zeros((1, LENGTH), jnp.int32)
    for mixer in (Attention(), InfiniAttention(segment=64)):
        model = model_of(kind("NoPE"), mixer=mixer, attention="dense")
        model = model.clone(activation_sharding=sharding.of_activations(mesh))
        trace = functools.partial(jax.eval_shape, model.init, jax.random.key(0), tokens, tokens)
        if isinstance(mixer, Attention):
            trace()
            continue
        with pytest.raises(
            UserError, match="sequence is 4: it must be 1 for layers with InfiniAtt"
        ):
            trace()


def test_only_a_mesh_that_splits_rows_has_the_axis():
    for sequence, axes in ((1, sharding.AXES), (2, (*sharding.AXES, "sequence"))):
        mesh = sharding.abstract_mesh(MeshShape(2, sequence=sequence), 2 * sequence)
        assert mesh.axis_names == axes and sharding.slices_of_rows(mesh) == sequence
    whole = sharding.abstract_mesh(MeshShape(), 4)
    assert sharding.of_rows(whole, 7).spec == sharding.BATCH
    assert sharding.of_activations(whole).spec == sharding.ACTIVATIONS


def test_the_axis_must_divide_rows_and_devices():
    mesh = sharding.abstract_mesh(FOUR, 4)
    with pytest.raises(
        UserError, match="rows of 510 .* evenly over MeshShape.sequence = 4: choose"
    ):
        sharding.of_rows(mesh, 510)
    with pytest.raises(UserError, match=r"needs 8 .*MeshShape.data=1 .*MeshShape.sequence=4"):
        sharding.check_sizes((2, 1, 1, 4), 4, 1, "this job")
    assert sharding.fitting((1, 8, 1, 16), 64) == (1, 4, 1, 16)
    assert sharding.fitting((1, 1, 1, 16), 24) == (2, 1, 1, 12)


@pytest.mark.parametrize(
    "lengths",
    [
        ("TRAIN_LENGTH=70",),
        (
            "pretrain.evaluation=@TrainingLosses()",
            "TrainingLosses.lengths=(64,70)",
            "TrainingLosses.every=1",
        ),
    ],
    ids=["training", "evaluation"],
)
def test_a_run_is_refused_before_it_compiles(lengths, capsys):
    files = ("configs/runs/quickstart.gin", "configs/positions/rope.gin")
    bindings = ("MeshShape.sequence=4", "MeshShape.data=1", *lengths)
    given = [f"--gin_file={file}" for file in files] + [f"--gin.{each}" for each in bindings]
    assert main(["pretrain", "--dry_run", *given]) == 2
    assert "rows of 70 tokens cannot be split evenly" in capsys.readouterr().err


def test_generation_needs_whole_rows():
    mesh = mesh_of((1, 1, 1, 4), jax.devices())
    with pytest.raises(UserError, match="sequence is 4: it must be 1 for generation"):
        call_for(model_of(kind("NoPE")), Greedy(), 4, (), 64, mesh)


def test_the_hosts_of_a_row_all_read_it():
    devices = np.array([SimpleNamespace(process_index=p) for p in (0, 0, 1, 1)])
    shape = dict(zip((*sharding.AXES, "sequence"), (1, 1, 1, 4), strict=True))
    mesh = SimpleNamespace(devices=devices.reshape(1, 1, 1, 4), shape=shape)
    assert [sharding.process_shard(mesh, p) for p in range(2)] == [(0, 1), (0, 1)]


SHARED_ROWS = """
import jax, numpy as np
from fire_lm import sharding
from fire_lm.processes import initialize_distributed

initialize_distributed()
mesh = sharding.make_mesh(sharding.MeshShape(1, sequence=jax.device_count()))
rows = np.arange(16, dtype=np.int32).reshape(2, 8)
batch = sharding.put_batch({"targets": rows, "tokens": rows[:, :1]}, mesh)
assert batch["targets"].shape == (2, 8) and batch["tokens"].shape == (2, 1)
for shard in batch["targets"].addressable_shards:
    np.testing.assert_array_equal(shard.data, rows[shard.index])
print(len(batch["targets"].addressable_shards), "slices as they should be")
"""


@pytest.mark.ci
def test_two_processes_supply_the_slices_of_the_same_rows():
    outputs = finish(start_together(["-c", SHARED_ROWS], 2, module=()))
    assert all("1 slices as they should be" in output for output in outputs), outputs
