"""fire_lm.checkpoints: saved state is restored; damaged or incompatible state is reported."""

import contextlib
import os
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import pytest
from sample_checkpoints import (
    INFO,
    POSITION,
    assert_equal,
    one_array,
    recovered,
    restored,
    saved,
    state,
)

from fire_lm import checkpoints
from fire_lm.checkpoints import (
    Allowed,
    Checkpointing,
    Checkpoints,
    available_steps,
    restore_params,
    writer,
)
from fire_lm.errors import RunFailed, UserError


@pytest.mark.parametrize("devices", [4, 2, 1])
def test_everything_comes_back_on_any_number_of_devices(tmp_path, devices):
    """A checkpoint saved from four devices is restored on any number."""
    found, position, info = restored(saved(tmp_path, 3, 5), 5, state(devices))
    assert_equal(found, state(devices, scale=5))
    assert (position, info) == (POSITION, INFO)
    with pytest.raises(AssertionError):
        assert_equal(found, state(devices, scale=3))


def test_keep_the_last_and_every_so_many(tmp_path):
    steps = range(1, 9)
    saved(tmp_path / "a", *steps, keep_last=2)
    assert available_steps(tmp_path / "a") == [7, 8]
    saved(tmp_path / "b", *steps, keep_last=2, keep_every=3)
    assert available_steps(tmp_path / "b") == [3, 6, 7, 8]


def test_keep_the_best(tmp_path, capsys):
    """The best checkpoints are kept among those that have been evaluated and still exist."""
    best = [3, 1, 2, 4]
    policy = Checkpointing(keep_last=2, keep_best=2)
    with contextlib.closing(Checkpoints(tmp_path, policy, lambda: best)) as writer:
        for step in range(1, 8):
            writer.save(step, state(4), POSITION, INFO)
    assert available_steps(tmp_path) == [1, 3, 6, 7]

    def broken() -> list[int]:
        raise RunFailed("the table is damaged")

    with contextlib.closing(Checkpoints(tmp_path, policy, broken)) as writer:
        writer.save(8, state(4), POSITION, INFO)
    assert available_steps(tmp_path) == [1, 3, 6, 7, 8]
    assert "old checkpoints could not be removed: the table is damaged" in capsys.readouterr().err


def test_a_power_cut_after_a_removal_finds_the_new_step_on_disk(tmp_path, monkeypatch):
    """All files of the new step, and its name, are synced before the previous step is removed."""
    told: list[str] = []

    def noting(file: int) -> None:
        told.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    fsync, remove_step = os.fsync, writer.remove
    saved(tmp_path, 3, make=one_array, keep_last=1)
    folder = (tmp_path / "checkpoints").resolve()
    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(writer, "remove", lambda step: told.append("removed") or remove_step(step))
    saved(tmp_path, 5, make=one_array, keep_last=1)
    assert available_steps(tmp_path) == [5]
    before = told[: told.index("removed")]
    files = [str(path) for path in (folder / "5").rglob("*") if path.name != "manifest.sha256"]
    assert {*files, str(folder / "5" / f"manifest.sha256.{os.getpid()}.tmp")} <= set(before)
    assert before[-2:] == [str(folder / "5"), str(folder)], "the names, once they are there"


KILLED_WHILE_REMOVING = """
import os, sys
from etils import epath
from fire_lm.checkpoints import removal

def killed(self, *_, **__):
    os._exit(9)

type(epath.Path(sys.argv[1])).rmtree = killed
removal.remove(epath.Path(sys.argv[1]))
"""


@pytest.mark.ci
def test_a_kill_during_a_removal_leaves_nothing_for_good(tmp_path):
    folder = saved(tmp_path, 3, 5, make=one_array) / "checkpoints"
    arguments = [sys.executable, "-c", KILLED_WHILE_REMOVING, str(folder / "3")]
    assert subprocess.run(arguments).returncode == 9
    assert available_steps(tmp_path) == [5], "never half a step by its own name"
    assert len(list(folder.iterdir())) == 2
    assert recovered(tmp_path) == 5
    assert [path.name for path in folder.iterdir()] == ["5"]


def test_a_removal_that_failed_does_not_hinder_the_next(tmp_path):
    folder = saved(tmp_path, 3, make=one_array) / "checkpoints"
    (folder / "3.removing" / "state").mkdir(parents=True)
    saved(tmp_path, 5, make=one_array, keep_last=1)
    assert [path.name for path in folder.iterdir()] == ["5"]


def test_choose_step(tmp_path):
    saved(tmp_path, 3, 5)
    assert checkpoints.choose_step(tmp_path, None) == 5
    assert checkpoints.choose_step(tmp_path, 3) == 3
    with pytest.raises(UserError, match=r"has no checkpoint 4: choose one of \[3, 5\]"):
        checkpoints.choose_step(tmp_path, 4)
    with pytest.raises(UserError, match="nothing here contains no complete checkpoint"):
        checkpoints.choose_step("nothing here", None)


def test_split_run():
    assert checkpoints.split_run("runs/fire") == ("runs/fire", None)
    assert checkpoints.split_run("runs/fire@20") == ("runs/fire", 20)
    assert checkpoints.split_run("gs://me@here/run@20") == ("gs://me@here/run", 20)
    for wrong in ("last", "²", "٣", "-1", "", "9" * 5000):
        with pytest.raises(
            UserError, match=f"'runs/fire@{wrong}': a step number must follow the @.*@1000"
        ):
            checkpoints.split_run(f"runs/fire@{wrong}")


def test_only_the_last_component_has_a_step(tmp_path):
    """Home folders may have names such as user@corp.example."""
    home = tmp_path / "user@corp.example"
    run = saved(home / "exp", 600, make=one_array)
    assert checkpoints.split_run(str(run)) == (str(run), None)
    assert checkpoints.split_run(f"{run}@600") == (str(run), 600)
    assert checkpoints.split_run(str(home)) == (str(home), None), "an existing folder"


def test_a_folder_with_an_at_beside_a_run(tmp_path):
    run, other = saved(tmp_path / "exp", 600, make=one_array), tmp_path / "exp@500"
    for folder in (other, tmp_path / "exp@600", tmp_path / "exp@all", tmp_path / "exp@5,600"):
        folder.mkdir()
    assert checkpoints.split_run(str(other)) == (str(other), None)
    assert checkpoints.split_run(f"{other}@5") == (str(other), 5)
    for steps in ("600", "all", "5,600"):
        with pytest.raises(UserError, match=f"exp@{steps}' is a folder, but also denotes"):
            checkpoints.names_a_folder(f"{run}@{steps}")
        assert checkpoints.split_run(f"{run}@{steps}/") == (f"{run}@{steps}/", None)


@pytest.mark.parametrize(
    "setting",
    ["save_every=0", "keep_last=0", "keep_every=0", "keep_best=-1", "failures_allowed=-1"],
)
def test_a_policy_that_cannot_work(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(UserError, match=f"Checkpointing.{name} is"):
        Checkpointing(**{name: int(value)})


def test_another_number_of_processes_is_not_taken_for_damage(tmp_path):
    position = saved(tmp_path, 5) / "checkpoints" / "5" / "position"
    (position / "process_0000_of_0001").rename(position / "process_0000_of_0002")
    with pytest.raises(UserError, match="written by a different number of processes"):
        restored(tmp_path, 5, state(4))


def test_parameters_alone(tmp_path):
    found, missing = restore_params(saved(tmp_path, 3, 5), 5, state(2).params)
    assert_equal(found, state(2, scale=5).params)
    assert missing == []


def with_position(**leaves: Any) -> dict[str, Any]:
    params = state().params
    return params | {"layers": params["layers"] | {"position": leaves}}


def test_missing_leaves_are_refused_unless_listed(tmp_path):
    saved(tmp_path, 5)
    old = state().params["layers"]["position"]
    wanted = with_position(**old, mlp={"bias": jnp.full(3, 9.0)})
    with pytest.raises(
        UserError, match=r"@5 lacks parameters \(layers/position/mlp/bias\)\n.*init_allow_missing"
    ):
        restore_params(tmp_path, 5, wanted)
    with pytest.raises(UserError, match=r"lacks parameters \(layers/position/mlp/bias\)"):
        restore_params(tmp_path, 5, wanted, Allowed(missing=["layers/query/*"]))
    with pytest.raises(UserError, match="--gin.finetune.init_allow_missing=layers/position/"):
        restore_params(tmp_path, 5, wanted, Allowed(configurable="finetune"))
    found, missing = restore_params(tmp_path, 5, wanted, Allowed(missing=["layers/position/*"]))
    assert missing == ["layers/position/mlp/bias"]
    position = found["layers"]["position"]
    assert_equal(position["mlp"]["bias"], wanted["layers"]["position"]["mlp"]["bias"])  # initial
    assert_equal(position["c"], state(scale=5).params["layers"]["position"]["c"])


def test_left_over_leaves_are_refused_unless_listed(tmp_path):
    saved(tmp_path, 5)
    wanted = state().params
    del wanted["layers"]["position"]
    with pytest.raises(
        UserError,
        match=r"unused parameters \(layers/position/L, layers/position/c\)\n.*init_allow_unused",
    ):
        restore_params(tmp_path, 5, wanted)
    with pytest.raises(UserError, match=r"has unused parameters \(layers/position/c\)\n"):
        restore_params(tmp_path, 5, wanted, Allowed(unused=["*/L"]))
    found, _ = restore_params(tmp_path, 5, wanted, Allowed(unused=["layers/position/*"]))
    assert_equal(found["embedding"], state(scale=5).params["embedding"])
    assert "position" not in found["layers"]


def test_another_shape_is_refused(tmp_path):
    wanted = state().params | {"embedding": jnp.ones((8, 3))}
    with pytest.raises(
        UserError, match=r"'embedding' has shape \(4, 3\) in .*@5, but \(8, 3\) in this model"
    ):
        restore_params(saved(tmp_path, 5), 5, wanted, Allowed(missing=["*"], unused=["*"]))


def test_a_bucket_is_not_taken_for_a_local_folder():
    assert checkpoints.checkpoint_directory("gs://b/run").as_posix() == "gs://b/run/checkpoints"
    assert checkpoints.checkpoint_directory("run").is_absolute()
