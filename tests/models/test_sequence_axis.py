"""Rows split along the mesh axis `sequence`: the same losses and gradients as whole rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm import sharding
from fire_lm.errors import UserError
from fire_lm.models import InfiniAttention, Layers, build_decoder, size_tiny
from fire_lm.positions import encodings
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.sharding import MeshShape
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
    return compiled(model, shape, packed, rows)()


def compiled(model: Any, shape: MeshShape | None, packed: bool = False, rows: int = 2) -> Any:
    inputs: Any = batch(packed, rows)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens, tokens)["params"]
    if shape is not None:
        devices = jax.devices()[: shape.data * shape.fsdp * shape.tensor * shape.sequence]
        mesh = sharding.mesh_of(shape.resolve(len(devices)), devices)
        model = model.clone(activation_sharding=sharding.of_activations(mesh))
        layouts = sharding.with_shardings({"params": params}, mesh)["params"]
        params = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), params, layouts)
        inputs = jax.tree.map(lambda x: jax.device_put(x, sharding.of_rows(mesh, LENGTH)), inputs)

    def loss(params: Any, targets: Any, weights: Any, segments: Any) -> Any:
        pos = model.resampling.evaluation_positions(LENGTH)
        return summed_loss(params, model, targets, weights, pos, 1e-3, segments)[0]

    program = jax.jit(jax.value_and_grad(loss)).lower(params, *inputs).compile()
    run = functools.partial(program, params, *inputs)
    run.program = program
    return run


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


FIRE_G = functools.partial(kind("FIRE"), init_gamma=0.7, init_L=60.0)
WINDOWS = (Layers(kind("FIRE"), window=100), Layers(kind("NoPE"), window=400))
RANDOM = RandomizedPositions(max_length=2 * LENGTH)
WHOLE, PACKED = False, True
FOUR = MeshShape(1, 1, 1, 4)
CASES: dict[str, tuple[Any, MeshShape, bool, dict[str, Any]]] = {
    "fire": (kind("FIRE"), MeshShape(2, 1, 1, 2), PACKED, {}),
    "fire_g": (FIRE_G, FOUR, WHOLE, {"attention": "dense"}),
    "rope": (kind("RoPE"), MeshShape(1, 2, 1, 2), WHOLE, {}),
    "alibi": (kind("ALiBi"), MeshShape(1, 1, 2, 2), WHOLE, {}),
    "t5": (kind("T5"), FOUR, PACKED, {"share_position": True}),
    "fox": (kind("FoX"), FOUR, PACKED, {}),
    "windows": (WINDOWS, FOUR, PACKED, {}),
    "chunk": (Layers(kind("FoX"), chunk=100), FOUR, WHOLE, {}),
    "log_n": (kind("FIRE"), FOUR, PACKED, {"log_n": LogN()}),
    "dape": (kind("DAPE"), FOUR, WHOLE, {}),
    "random": (kind("FIRE"), FOUR, WHOLE, {"resampling": RANDOM, "remat": "full"}),
    "learned": (kind("Learned"), FOUR, PACKED, {"scan_layers": False}),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", CASES)
def test_slices_of_rows_compute_the_same(name):
    position, shape, packed, settings = CASES[name]
    model = model_of(position, **settings)
    rows = shape.data * shape.fsdp
    assert_same(numbers(model, shape, packed, rows), numbers(model, None, packed, rows))


def test_a_mixer_that_needs_whole_rows_is_refused():
    model = model_of(kind("NoPE"), mixer=InfiniAttention(segment=64))
    with pytest.raises(UserError, match="sequence is 4: it must be 1 for layers with InfiniAtt"):
        compiled(model, FOUR)
