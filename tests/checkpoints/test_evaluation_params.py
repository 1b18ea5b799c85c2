"""Evaluation reads the parameters that the optimizer means, wherever its state lies in a chain."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from optax import contrib

from fire_lm.checkpoints import (
    Allowed,
    Checkpointing,
    Checkpoints,
    evaluation_params,
    restore_params,
)
from fire_lm.training.averages import averaged
from fire_lm.training.step import TrainState

FREE = contrib.schedule_free_adamw(0.1)
# Some parameters follow a schedule-free optimizer, and `embedding` another.
PARTS = {"embedding": "other", "layers": {"query": {"kernel": "free"}, "norm": {"scale": "free"}}}


def after(optimizer: optax.GradientTransformation, updates: int) -> tuple[Any, Any]:
    """Return the parameters and the state after some updates."""
    params = {
        "embedding": jnp.arange(6.0).reshape(2, 3),
        "layers": {"query": {"kernel": jnp.ones((2, 4))}, "norm": {"scale": jnp.ones(2)}},
    }

    def step(number: Any, before: Any) -> Any:
        params, state = before
        grads = jax.tree.map(lambda x: jnp.cos(3.0 * x + number) + 0.5, params)
        changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    with jax.numpy_dtype_promotion("standard"):
        return jax.jit(
            lambda: jax.lax.fori_loop(0, updates, step, (params, optimizer.init(params)))
        )()


def save(folder: Path, params: Any, state: Any) -> None:
    with contextlib.closing(Checkpoints(folder, Checkpointing())) as writer:
        writer.save(3, TrainState(jnp.int32(3), params, state), b"", {})


def read(folder: Path, params: Any, state: Any) -> Any:
    """Return the parameters that a reader of a checkpoint with this state gets."""
    save(folder, params, state)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    found, missing = restore_params(folder, 3, like)
    assert not missing
    return found


def largest_difference(one: Any, other: Any) -> float:
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(abs(x - y).max()), one, other)))


@pytest.mark.parametrize("stored", [jnp.float32, jnp.bfloat16])
def test_schedule_free(stored, tmp_path):
    """The training iterate y is saved; x is evaluated. z may be stored in another data type."""
    free = contrib.schedule_free_adamw(0.1, state_dtype=stored)
    params, state = after(optax.chain(optax.clip_by_global_norm(1.0), free), 5)
    with jax.numpy_dtype_promotion("standard"):
        expected = contrib.schedule_free_eval_params(state[1], params)
    found = read(tmp_path, params, state)
    assert largest_difference(found, expected) < 1e-5
    assert largest_difference(found, params) > 0.01, "another point than y"
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.chain(optax.adam(0.1), optax.identity()), optax.clip(1.0), FREE),
        optax.partition({"free": FREE, "other": optax.adam(0.1)}, PARTS),
        contrib.sam(optax.sgd(0.1), optax.sgd(0.5), sync_period=3),
        averaged(FREE, 0.9),
    ],
    ids=["nested chains", "partition", "sam", "average"],
)
def test_a_reader_gets_what_the_state_in_memory_means(optimizer, tmp_path):
    params, state = after(optimizer, 4)
    expected = evaluation_params(params, state)
    assert largest_difference(read(tmp_path, params, state), expected) < 1e-6
    assert largest_difference(params, expected) > 0.01


def test_arrays_of_the_state_are_read_with_the_sharding_of_their_parameter(tmp_path):
    """The path of one parameter ends like that of another, whose sharding does not fit."""
    mesh = jax.make_mesh((2,), ("fsdp",), (AxisType.Auto,), devices=jax.devices()[:2])
    layouts = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("fsdp",), (None, "fsdp"))]
    params = {"embedding": jnp.ones(4), "layers": {"position": {"embedding": jnp.ones((3, 4))}}}
    state = FREE.init(params)._replace(z=jax.tree.map(jnp.zeros_like, params))
    save(tmp_path, params, state)
    like = {
        "embedding": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=layouts[0]),
        "layers": {
            "position": {
                "embedding": jax.ShapeDtypeStruct((3, 4), jnp.float32, sharding=layouts[1])
            }
        },
    }
    found, _ = restore_params(tmp_path, 3, like)
    for leaf, asked in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
        assert leaf.sharding == asked.sharding
        np.testing.assert_allclose(leaf, 1 / 0.9, rtol=1e-6)
    missing = {**like, "new": jnp.zeros(2)}
    found, names = restore_params(tmp_path, 3, missing, Allowed(missing=["new"]))
    assert names == ["new"] and not found["new"].any()


def test_only_the_parameters_of_a_schedule_free_part_differ():
    params, state = after(optax.partition({"free": FREE, "other": optax.adam(0.1)}, PARTS), 4)
    found = evaluation_params(params, state)
    np.testing.assert_array_equal(found["embedding"], params["embedding"])
    own = state.inner_states["free"].inner_state
    kernel, z = (tree["layers"]["query"]["kernel"] for tree in (params, own.z))
    expected = (kernel - (1 - own.b1) * z) / own.b1
    np.testing.assert_allclose(found["layers"]["query"]["kernel"], expected, rtol=1e-6)


def test_sharpness_aware_minimisation_is_evaluated_without_its_perturbation():
    """Between two steps of the outer optimizer, the parameters are perturbed."""
    optimizer = contrib.sam(optax.sgd(0.1), optax.sgd(0.5), sync_period=2)
    synced, perturbed = after(optimizer, 2), after(optimizer, 3)
    assert largest_difference(evaluation_params(*synced), synced[0]) == 0
    assert largest_difference(evaluation_params(*perturbed), synced[0]) == 0
    assert largest_difference(perturbed[0], synced[0]) > 0.1


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adamw(0.1), optax.adafactor(0.1), contrib.muon(0.1), contrib.prodigy(0.1),
        contrib.mechanize(optax.sgd(1.0)), contrib.madgrad(0.1), contrib.ademamix(0.1),
    ],
)  # fmt: skip
def test_other_optimizers_evaluate_what_they_train(optimizer):
    params = {"embedding": jnp.ones((2, 3)), "layers": {"norm": {"scale": jnp.ones(2)}}}
    found = evaluation_params(params, optimizer.init(jax.tree.map(jnp.zeros_like, params)))
    assert found["embedding"] is params["embedding"]
    assert found["layers"]["norm"]["scale"] is params["layers"]["norm"]["scale"]
