"""A start that fails before its first step is complete leaves the run directory as it was."""

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from sample_run import command, tiny_run

from fire_lm import training
from fire_lm.cli import main
from fire_lm.data import Synthetic
from fire_lm.errors import RunFailed, UserError
from fire_lm.runs.find import NotYet, find_runs
from fire_lm.runs.run import open_run
from fire_lm.storage import removing_new_folders
from fire_lm.tasks.synthetic import BinaryAddition
from fire_lm.training import Pretraining, lock, loop
from fire_lm.training.lock import only_writer, writer_of


class OutOfMemory(Exception):
    """Raised where JAX would raise RESOURCE_EXHAUSTED."""


def exhausted(*_: Any, **__: Any) -> Any:
    raise OutOfMemory


class Unreadable:
    """The metrics of a step whose computation failed after it was dispatched."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise OutOfMemory


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    ("fails", "there"),
    [("compiling", True), ("the first step", False), ("reading the first step", True)],
)
def test_nothing_is_left_of_a_failed_start(fails, there, tmp_path, monkeypatch):
    workdir = tmp_path / "deep" / "run"
    if there:
        workdir.mkdir(parents=True)
        (workdir / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    if fails == "compiling":
        monkeypatch.setattr(Pretraining, "compile", exhausted)
    else:
        failed = exhausted if fails == "the first step" else lambda state, *_: (state, Unreadable())
        monkeypatch.setattr(loop, "compiled_for", lambda *_: failed)
    saved: list[int] = []
    with pytest.raises(OutOfMemory):
        training.pretrain(
            tiny_run(data=Synthetic(BinaryAddition(), max_length=7)),
            str(workdir),
            after_first_step=lambda: saved.append(1),
        )
    assert contents(tmp_path) == before and not saved


@pytest.mark.ci
@pytest.mark.parametrize("binding", ["BATCH_SIZE=6", "TextData.tfds_name='nowhere'"])
def test_a_refused_start_of_the_command_leaves_nothing(binding, data_dir, tmp_path, capsys):
    """Nor does it print pages of settings before its message."""
    assert main(command(data_dir, tmp_path / "runs" / "one", f"--gin.{binding}")) == 2
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr()
    assert "TRAIN_STEPS" not in said.out and said.err


@pytest.mark.ci
def test_a_failed_restart_does_not_change_the_experiment(data_dir, tmp_path, monkeypatch):
    """Otherwise, the original command would be refused after a larger batch did not fit."""
    workdir = tmp_path / "run"
    assert main(command(data_dir, workdir)) == 0
    before = contents(workdir)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "compiled_for", lambda *_: exhausted)
        longer = ("--gin.TRAIN_STEPS=20", "--gin.BATCH_SIZE=16", "--allow_config_change")
        with pytest.raises(OutOfMemory):
            main(command(data_dir, workdir, *longer))
    after = contents(workdir)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == []


def test_only_new_and_empty_folders_are_removed(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    with removing_new_folders(there / "a" / "b"), removing_new_folders(there):
        (there / "a" / "b").mkdir(parents=True)
        (there / "a" / "kept").touch()
    assert contents(tmp_path) == {"there": b"", "there/a": b"", "there/a/kept": b""}


def test_the_lock_is_removed_with_its_writer(tmp_path):
    with only_writer(str(tmp_path)):
        told = writer_of(str(tmp_path))
        assert told.startswith(f"process {os.getpid()} on ") and " since 20" in told
    assert not list(tmp_path.iterdir()) and not writer_of(str(tmp_path))
    (tmp_path / ".lock").write_text("process 1 on another, of a killed run")
    with only_writer(str(tmp_path)):
        assert writer_of(str(tmp_path)) == told


def test_the_lock_of_a_directory_that_took_the_place_of_the_old_one_is_kept(tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    with only_writer(str(workdir)):
        workdir.rename(tmp_path / "old")
        workdir.mkdir()
        (workdir / ".lock").touch()
    assert (workdir / ".lock").exists()


def test_two_writers_cannot_hold_a_lock_whose_file_was_removed(tmp_path, monkeypatch):
    """The second opens the file before the first removes it, and locks it afterwards."""
    flock, opened, removed = fcntl.flock, threading.Event(), threading.Event()

    def late(*arguments: Any) -> None:
        opened.set()
        removed.wait(10)
        flock(*arguments)

    held: list[bool] = []

    def second() -> None:
        with lock._flocked(tmp_path):
            held.append((tmp_path / ".lock").exists())

    with lock._flocked(tmp_path):
        monkeypatch.setattr(fcntl, "flock", late)
        thread = threading.Thread(target=second)
        thread.start()
        assert opened.wait(10)
    removed.set()
    thread.join(10)
    assert held == [True]


def test_a_look_at_the_lock_does_not_refuse_a_start(tmp_path):
    (tmp_path / ".lock").touch()
    looking = (tmp_path / ".lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.2, looking.close).start()
    with only_writer(str(tmp_path)):
        pass


def test_a_run_that_is_starting_is_told_with_its_writer(tmp_path):
    for inside in (tmp_path / "run", tmp_path / "runs" / "run"):
        inside.mkdir(parents=True)
        with only_writer(str(inside)):
            named = str(inside if inside.parent == tmp_path else inside.parent)
            words = (
                f"{inside} contains no run yet: process {os.getpid()} on .* since .* is starting"
            )
            with pytest.raises(NotYet, match=words):
                find_runs([named])
            with pytest.raises(UserError, match=words):
                open_run(str(inside))
    with pytest.raises(NotYet, match="neither a run"):
        find_runs([str(tmp_path)])


def test_a_step_that_fails_later_leaves_its_evidence(tmp_path):
    """The metrics of the first step are NaN: the configuration and the spike are recorded."""
    from test_training_steps import report

    from fire_lm.training.reporter import new_counters

    steps: dict[int, dict[str, Any]] = {1: {"loss": float("nan")}, 2: {}}
    with pytest.raises(RunFailed, match="loss is nan at step 1"):
        report(tmp_path / "run", new_counters(), steps)
    assert (tmp_path / "run" / "spikes.jsonl").exists()
