"""What `fire-lm preflight` reports about run directories: checkpoints and runs to start from."""

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from preflight_checks import config_of, data, outcomes
from sample_run import command

from fire_lm.checkpoints import Checkpointing, Checkpoints, check_arrays
from fire_lm.errors import RunFailed, UserError
from fire_lm.positions.fire import FIRE
from fire_lm.preflight.report import FAILED, OK
from fire_lm.runs.saved import save_config
from fire_lm.training.start import check_start
from fire_lm.training.step import TrainState

__all__ = ["data"]  # fixtures


def config_as_trained(data: Path, *changes: str) -> Any:
    bindings = [
        argument.removeprefix("--gin.")
        for argument in command(data, Path())
        if argument.startswith("--gin.")
    ]
    return config_of(data, *bindings, *changes)


def state_as_trained(data: Path) -> TrainState:
    state: TrainState = config_as_trained(data).train.abstract_state()
    return state


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> Path:
    """Write a run directory as training does, except that its arrays contain zeros."""
    run = tmp_path_factory.mktemp("runs") / "fire"
    config = config_as_trained(data)
    save_config(config, str(run))
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state_as_trained(data))
    with contextlib.closing(Checkpoints(run, Checkpointing())) as writer:
        writer.save(3, state, b"", {})
    return run


def as_trained(data: Path, run: Path, *changes: str) -> tuple[str, str]:
    """Return the outcome for the checkpoint in `run` under the configuration of its training."""
    return outcomes(config_as_trained(data, *changes), str(run))["checkpoint"]


@pytest.mark.ci
def test_a_run_goes_on_where_it_is(data, trained):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    assert as_trained(data, trained) == (OK, "continues from step 3")
    outcome, told = as_trained(data, trained, "SEED=1")
    assert outcome == FAILED and "contains another experiment" in told
    changed = outcomes(config_as_trained(data, "SEED=1"), str(trained), allow_change=True)
    assert changed["checkpoint"] == (OK, "continues from step 3")
    averaged = config_as_trained(data, "pretrain.ema_decay=0.9")
    found = outcomes(averaged, str(trained), allow_change=True)["checkpoint"]
    assert found == (OK, "continues from step 3"), "as a run that turns the average on"
    outcome, told = outcomes(config_as_trained(data), str(trained), hosts=2)["checkpoint"]
    assert outcome == FAILED and "do not match the 2 processes of this job" in told
    assert before == {p: p.stat().st_mtime_ns for p in trained.rglob("*") if p.is_file()}


@pytest.mark.ci
@pytest.mark.parametrize(
    "change, told",
    [
        (
            "size_tiny.mlp_size=128",
            "is float32 [1, 64] in the checkpoint, but float32 [1, 128] in the model",
        ),
        ("FIRE.width=8", "is float32 [1, 32] in the checkpoint, but float32 [1, 8] in the model"),
        ("POSITION=@NoPE", " in the checkpoint, but missing in the model"),
        (
            "POSITION=@Learned build_decoder.share_position=True",
            "is missing in the checkpoint, but float32 [32, 32] in the model",
        ),
    ],
)
def test_a_checkpoint_of_another_model(change, told, data, trained, tmp_path):
    run = tmp_path / "fire"
    run.mkdir()
    (run / "checkpoints").symlink_to(trained / "checkpoints")
    outcome, said = as_trained(data, run, *change.split())
    assert outcome == FAILED and told in said and "does not match this model" in said, said
    assert as_trained(data, run)[0] == OK


@pytest.mark.ci
def test_a_checkpoint_of_another_type(data, trained):
    like = state_as_trained(data)
    check_arrays(trained, 3, like)
    halved = jax.tree.map(lambda leaf: leaf.update(dtype=jnp.bfloat16), like.params)
    with pytest.raises(
        RunFailed, match=r"float32 \[384, 32\] in the checkpoint, but bfloat16 \[384, 32\] in"
    ):
        check_arrays(trained, 3, like.replace(params=halved))


@pytest.mark.ci
@pytest.mark.parametrize(
    "at, changes, outcome, told",
    [
        ("", "", OK, "starts from the parameters of {run}@3"),
        ("@3", "", OK, "starts from the parameters of {run}@3"),
        ("@0", "", FAILED, "{run} has no checkpoint 0: choose one of [3]"),
        ("", "size_tiny.mlp_size=128", FAILED, "has shape (1, 64) in {run}@3, but (1, 128)"),
        (
            "",
            "POSITION=@NoPE",
            FAILED,
            "this run has NoPE: checkpoint {run}@3 has unused parameters (layers",
        ),
        ("", "POSITION=@NoPE pretrain.init_allow_unused=layers/position/*", OK, "{run}@3"),
        ("", "POSITION=@KERPLELog", FAILED, "lacks parameters (layers/position/"),
        (
            "",
            "POSITION=@KERPLELog pretrain.init_allow_unused=layers/position/* "
            "pretrain.init_allow_missing=layers/position/*",
            OK,
            "{run}@3; newly initialised: layers/position/",
        ),
    ],
)
def test_a_run_to_start_from(at, changes, outcome, told, data, trained, tmp_path):
    config = config_as_trained(data, f"INIT_FROM={trained}{at}", *changes.split())
    found, said = outcomes(config, str(tmp_path / "new"))["INIT_FROM"]
    assert found == outcome and told.format(run=trained) in said, said


class Twin(FIRE):
    """Another encoding whose parameters have the same names and shapes."""


@pytest.mark.ci
def test_parameters_of_the_same_name_in_another_encoding_are_not_taken(data, trained):
    """Training refuses them as well, which test_family.py shows in the ci tier."""
    run = config_as_trained(data).train
    fire = run.model
    twin = fire.with_encodings((Twin(*dataclasses.astuple(fire.encodings[0])),))

    def missing(model: Any, source: Any, *allowed: str) -> list[str]:
        changes = {"init_allow_missing": allowed, "init_allow_unused": allowed}
        started = dataclasses.replace(run, model=model, init_from=str(trained), **changes)
        return check_start(started, source)[1]

    assert missing(fire, fire) == missing(twin, twin) == []
    with pytest.raises(UserError, match="has FIRE, but this run has Twin: .* lacks .*position/L_m"):
        missing(twin, fire)
    fresh = missing(twin, fire, "layers/position/*")
    assert fresh and all(path.startswith("layers/position/") for path in fresh)


@pytest.mark.ci
def test_a_run_to_start_from_without_checkpoints(data, trained, tmp_path):
    shutil.copy(trained / "config.gin", tmp_path)
    found, said = outcomes(config_as_trained(data, f"INIT_FROM={tmp_path}"))["INIT_FROM"]
    assert found == FAILED and "contains no complete checkpoint" in said, said


@pytest.mark.ci
def test_a_run_that_goes_on_starts_from_nowhere(data, trained, tmp_path):
    config = config_as_trained(data, f"INIT_FROM={tmp_path / 'gone'}")
    assert outcomes(config, str(trained))["INIT_FROM"] == (
        *(OK, "not read: the run directory has checkpoints"),
    )
