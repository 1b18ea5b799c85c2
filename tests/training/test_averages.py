"""Averages of parameters, and optimizers whose state contains parameters, in training."""

import shutil
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from optax import contrib
from sample_run import assert_same_arrays, command, saved_state, tiny_run

from fire_lm import open_run
from fire_lm.checkpoints import AverageState, evaluation_params
from fire_lm.cli import main
from fire_lm.errors import RunFailed, UserError
from fire_lm.sharding import (
    MeshShape,
    make_mesh,
    mesh_of,
    put_batch,
    put_scalar,
    tree_shardings,
    with_shardings,
)
from fire_lm.training import Spikes, loop, start
from fire_lm.training.averages import averaged
from fire_lm.training.loop import fresh_state, restored_from
from fire_lm.training.optax_by_name import Optax
from fire_lm.training.step import TrainState


def updated(decay: float, updates: int) -> tuple[list[float], Any]:
    """Return the parameter before and after each update by -1, and the last state."""
    optimizer = averaged(optax.sgd(1.0), decay)
    params = {"embedding": jnp.array([10.0])}
    state, values = optimizer.init(params), [10.0]
    for _ in range(updates):
        changes, state = optimizer.update({"embedding": jnp.array([1.0])}, state, params)
        params = optax.apply_updates(params, changes)
        values.append(float(params["embedding"][0]))
    return values, state


def test_the_decay_rate_rises_until_it_is_the_requested_one():
    values, state = updated(0.3, 5)
    average = values[0]
    for number, value in enumerate(values[1:]):
        decay = min(0.3, (1 + number) / (10 + number))
        average = decay * average + (1 - decay) * value
    np.testing.assert_allclose(state.average["embedding"], average, rtol=1e-6)
    assert values[-1] == 5.0, "updates themselves do not change"
    assert int(state.averaged_updates) == 5


def test_an_average_of_a_schedule_free_optimizer_is_of_what_it_evaluates():
    free = contrib.schedule_free_sgd(0.5)
    optimizer, params = averaged(free, 0.0), {"embedding": jnp.array([10.0])}
    state = optimizer.init(params)
    for _ in range(3):
        changes, state = optimizer.update({"embedding": jnp.array([1.0])}, state, params)
        params = optax.apply_updates(params, changes)
    x = evaluation_params(params, state.optimizer)
    np.testing.assert_allclose(state.average["embedding"], x["embedding"], rtol=1e-6)
    assert abs(x["embedding"] - params["embedding"]) > 0.01


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_rate_out_of_range(decay):
    with pytest.raises(UserError, match="ema_decay is .*: it must be 0 or more, and less than 1"):
        tiny_run(ema_decay=decay)


def test_without_an_average_nothing_changes_and_with_one_it_is_sharded_like_the_parameters():
    plain, run = tiny_run().abstract_state(), tiny_run(ema_decay=0.9, mesh=MeshShape(2, 2, 1))
    state = run.abstract_state()
    assert isinstance(state.opt_state, AverageState)
    assert jax.tree.structure(state.opt_state.optimizer) == jax.tree.structure(plain.opt_state)
    assert "average" not in str(jax.tree_util.tree_flatten_with_path(plain)[0])
    specs = tree_shardings(state, make_mesh(run.mesh))
    assert specs.opt_state.average == specs.params
    kernel = specs.opt_state.average["layers"]["query"]["kernel"]
    assert kernel.spec == PartitionSpec(None, "fsdp", "tensor", None)


@pytest.mark.parametrize(
    "optimizer", [contrib.schedule_free_sgd(1.0), contrib.prodigy(1.0), averaged(optax.sgd(1.0), 0)]
)
def test_an_optimizer_starts_from_the_parameters_of_init_from(optimizer, monkeypatch, tmp_path):
    """Its state would otherwise contain the parameters that were drawn, and lead back to them."""
    run = tiny_run(init_from=str(tmp_path), optimizer=Optax(optimizer, 1.0))
    drawn, restored = ({"embedding": jnp.full((2, 3), x)} for x in (7.0, 1.0))
    monkeypatch.setattr(start, "by_first", lambda work: 1)
    monkeypatch.setattr(start, "restore_params", lambda *_, **__: (restored, []))
    found = start.start_from(TrainState(jnp.int32(0), drawn, optimizer.init(drawn)), run, None)
    expected = optimizer.init(restored)
    jax.tree.map(np.testing.assert_array_equal, found.opt_state, expected)
    arrays = jax.tree.leaves((found.params, found.opt_state))
    buffers = {array.unsafe_buffer_pointer() for array in arrays}
    assert len(buffers) == len(arrays), "a training step donates each of them"


def test_a_damaged_checkpoint_is_set_aside_also_if_the_average_is_turned_on(monkeypatch):
    """The checkpoint lacks the average, and one of its other arrays has changed on the disk."""
    checkpoints = mock.Mock(restore=mock.Mock(side_effect=[RunFailed("lacks an average"), None]))
    monkeypatch.setattr(loop, "array_paths", lambda workdir, step: ["params/embedding"])
    assert restored_from(checkpoints, 3, tiny_run(ema_decay=0.9).abstract_state()) is None


@pytest.mark.ci
def test_a_run_with_an_average(data_dir, tmp_path, capsys):
    """It resumes to the same bits; a run without one turns it on and off with the usual flag."""
    workdir, on = tmp_path / "run", "--gin.pretrain.ema_decay=0.9"
    assert main(command(data_dir, workdir, on)) == 0
    whole = saved_state(workdir, 12)
    shutil.rmtree(workdir / "checkpoints" / "12")
    assert main(command(data_dir, workdir, on)) == 0
    assert_same_arrays(saved_state(workdir, 12), whole)
    embedding, average = (whole[f"{at}/embedding"] for at in ("params", "opt_state/average"))
    assert abs(embedding - average).max() > 1e-3
    _, params = open_run(f"{workdir}@12").restore()
    np.testing.assert_array_equal(params["embedding"], average)

    more = "--gin.TRAIN_STEPS=14"
    assert main(command(data_dir, workdir, more)) == 2
    assert "pretrain.ema_decay: 0.9 -> None" in capsys.readouterr().err
    assert main(command(data_dir, workdir, more, "--allow_config_change")) == 0
    assert not [name for name in saved_state(workdir, 14) if "average" in name]
    change = [on, "--gin.TRAIN_STEPS=15", "--allow_config_change"]
    assert main(command(data_dir, workdir, *change)) == 0
    state = saved_state(workdir, 15)
    before, after = (saved_state(workdir, step)["params/embedding"] for step in (14, 15))
    expected = 0.1 * before + 0.9 * after
    np.testing.assert_allclose(state["opt_state/average/embedding"], expected, atol=1e-6)
    assert int(state["opt_state/averaged_updates"]) == 1


@pytest.mark.ci
def test_skipped_updates_leave_the_average():
    run = tiny_run(
        ema_decay=0.9, microbatches=2, spikes=Spikes(skips_allowed=1), mesh=MeshShape(1, 1, 1)
    )
    mesh = mesh_of((1, 1, 1), jax.devices()[:1])
    step, like = run.compile(mesh), with_shardings(run.abstract_state(), mesh)
    targets = np.arange(8 * 16, dtype=np.int32).reshape(8, 16)
    batch = put_batch({"targets": targets, "weights": np.ones_like(targets, np.int8)}, mesh)
    state, averages = fresh_state(run, mesh, like), []
    for limit in (np.inf, -1.0, np.inf):
        scalars = [put_scalar(x, mesh) for x in (np.uint32(0), np.float32(limit))]
        state, _ = step(state, batch, *scalars)
        averages.append(np.asarray(state.opt_state.average["embedding"]))
        counts = int(state.opt_state.averaged_updates)
    assert counts == 2 and int(state.step) == 3
    np.testing.assert_array_equal(averages[1], averages[0])
    assert abs(averages[2] - averages[1]).max() > 0
