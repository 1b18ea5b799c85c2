"""Checkpoints that are damaged, truncated or foreign are detected, reported and skipped."""

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from etils import epath
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
    Checkpointing,
    Checkpoints,
    available_steps,
    manifest,
    restore_params,
    writer,
)
from fire_lm.checkpoints.manifest import NEVER_ENDED
from fire_lm.errors import FireLMError, RunFailed


@pytest.mark.parametrize("name", ["5.orbax-checkpoint-tmp", "5"])
def test_a_save_cut_short_is_not_a_checkpoint_and_blocks_nothing(tmp_path, name):
    folder = saved(tmp_path, 3) / "checkpoints"
    torn = folder / name / "state"
    torn.mkdir(parents=True)
    (torn / "half").write_text("x")
    foreign = folder / "notes" / "5"
    foreign.mkdir(parents=True)
    assert available_steps(tmp_path) == [3] == [recovered(tmp_path)]
    saved(tmp_path, 5)
    assert available_steps(tmp_path) == [3, 5]
    assert_equal(restored(tmp_path, 5, state())[0], state(scale=5))
    assert foreign.exists()


def truncate_arrays(folder: Path) -> None:
    """Truncate every data file of the arrays to half its size."""
    files = [path for path in folder.glob("state/**/d/*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, draw: random.Random) -> None:
    """Flip one random bit of a file."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def test_forty_damages_are_forty_detections(tmp_path, capsys):
    """Damage a random position in each file; every time, the previous step is still intact."""
    whole = saved(tmp_path / "whole", 3, 5, make=one_array)
    files = sorted(path for path in (whole / "checkpoints" / "5").rglob("*") if path.is_file())
    assert len(files) > 10
    draw = random.Random(0)
    assert recovered(whole) == 5
    for number in range(40):
        run = shutil.copytree(whole, tmp_path / str(number))
        damaged = run / files[number % len(files)].relative_to(whole)  # each file gets its turn
        draw.choice([flip, flip, cut, remove])(damaged, draw)
        kind = RunFailed if damaged.exists() else FireLMError
        with pytest.raises(kind, match="checkpoint 5 of .* is damaged: |has no checkpoint 5: "):
            checkpoints.choose_step(run, 5)
        assert checkpoints.choose_step(run, None) == 3
        capsys.readouterr()
        assert recovered(run) == 3
        error = capsys.readouterr().err
        if (run / "checkpoints" / "5.damaged").exists():
            assert str(damaged.relative_to(run / "checkpoints" / "5")) in error, damaged
        else:
            assert damaged.name == "manifest.sha256" and "kept as 5.unfinished" in error
    saved(run, 5, make=one_array)
    assert recovered(run) == 5 and (run / "checkpoints" / "5").exists()


def test_every_checkpoint_damaged(tmp_path, capsys):
    """Training never silently starts over, because that would drop what the run has logged."""
    folder = saved(tmp_path, 3, 5, make=one_array) / "checkpoints"
    for step in (3, 5):
        truncate_arrays(folder / str(step))
    with pytest.raises(RunFailed, match=r"every checkpoint of .* is damaged: \[3, 5\]"):
        checkpoints.choose_step(tmp_path, None)
    with pytest.raises(RunFailed, match=r"has no intact checkpoint \(5: .*; 3: .*\nto start over"):
        recovered(tmp_path)
    assert checkpoints.available_steps(tmp_path) == [3, 5], "nothing has been moved"


@pytest.mark.parametrize("steps", [(5,), (3, 5)])
def test_saves_that_never_ended_are_set_aside(steps, tmp_path, capsys):
    folder = saved(tmp_path, *steps, make=one_array) / "checkpoints"
    for step in steps:
        (folder / str(step) / "manifest.sha256").unlink()
    assert recovered(tmp_path) == 0
    assert {path.name for path in folder.iterdir()} == {f"{step}.unfinished" for step in steps}
    assert "(its save never finished): kept as 5.unfinished; starting" in capsys.readouterr().err


def test_a_host_that_does_not_see_the_checkpoints_moves_none(tmp_path, monkeypatch):
    """For example, its disk is not mounted after a reboot."""
    saved(tmp_path, 3, 5, make=one_array)
    monkeypatch.setattr(writer, "_problem_of_any", lambda *_: NEVER_ENDED)
    with pytest.raises(RunFailed, match=r"process 0 finds checkpoint 5 .*\nevery host needs"):
        recovered(tmp_path)
    assert available_steps(tmp_path) == [3, 5]


def test_what_others_keep_there_is_left_alone(tmp_path):
    folder = saved(tmp_path, 5, make=one_array) / "checkpoints"
    (folder / "2024").mkdir()
    (folder / "2024" / "thesis.txt").write_text("mine")
    (folder / "7").write_text("mine too")
    for copy in ("²", "005", "٣"):
        shutil.copytree(folder / "5", folder / copy)
    assert recovered(tmp_path) == 5 == available_steps(tmp_path)[0]
    saved(tmp_path, 6, 8, 9, make=one_array, keep_last=1)
    assert (folder / "2024" / "thesis.txt").exists() and (folder / "7").exists()


def test_a_block_that_cannot_be_read_is_damage(tmp_path, monkeypatch, capsys):
    folder = saved(tmp_path, 3, 5, make=one_array) / "checkpoints"
    broken = str(folder / "5" / "info")
    digest = manifest._digest

    def with_bad_block(path):
        if str(path).startswith(broken):
            raise OSError(5, "Input/output error")
        return digest(path)

    monkeypatch.setattr(manifest, "_digest", with_bad_block)
    assert recovered(tmp_path) == 3
    assert "it cannot be read: [Errno 5] Input/output error" in capsys.readouterr().err


def test_a_failed_save_is_never_told_as_success(tmp_path, monkeypatch):
    """A failed save raises, even if the storage also refuses to list what it contains."""

    def refuse(*_: object) -> Any:
        raise OSError("refused")

    with pytest.raises(RunFailed, match="checkpoint 5 of .* could not be saved: refused"):
        with contextlib.closing(Checkpoints(tmp_path, Checkpointing())) as writer:
            monkeypatch.setattr("fire_lm.checkpoints.writer.write_manifest", refuse)
            monkeypatch.setattr("fire_lm.checkpoints.writer.available_steps", refuse)
            monkeypatch.setattr("fire_lm.checkpoints.writer.is_checkpoint", refuse)
            writer.save(5, state(4), POSITION, INFO)


def test_the_end_of_a_save_does_not_hide_another_failure(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        with contextlib.closing(Checkpoints(tmp_path, Checkpointing())) as writer:
            monkeypatch.setattr("fire_lm.checkpoints.writer.write_manifest", lambda step: 1 / 0)
            writer.save(5, state(4), POSITION, INFO)
            raise ZeroDivisionError


def test_a_file_that_nobody_wrote_is_no_damage(tmp_path):
    (saved(tmp_path, 3) / "checkpoints" / "3" / "notes.txt").write_text("mine")
    assert recovered(tmp_path) == 3


FULL_DISK = """
import resource, sys
import numpy as np
from fire_lm.checkpoints import Checkpointing, Checkpoints
from fire_lm.errors import RunFailed

def save(*steps, full):
    \"\"\"On a full disk, no file may grow beyond a few bytes.\"\"\"
    for step in steps:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 if full else before[0], before[1]))
        try:
            writer.save(step, {"x": np.ones(1000)}, b"position", {"tokens": 1})
            writer.settle()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

writer = Checkpoints(sys.argv[1], Checkpointing(failures_allowed=2))
save(3, full=False)
save(5, 7, full=True)
save(9, full=False)
save(11, 13, full=True)
save(15, full=False)
save(17, 19, full=True)
for last in (lambda: save(21, full=True), writer.close):
    try:
        last()
    except RunFailed as error:
        print(error)
"""


@pytest.mark.ci
def test_saves_on_a_full_disk(tmp_path):
    """Training continues after two failed saves in a row, but not after three, and reports each."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert available_steps(tmp_path) == [3, 9, 15]
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["15", "3", "9"]
    for step, newest in ((5, 3), (7, 3), (11, 9), (13, 9), (17, 15), (19, 15)):
        first = f"checkpoint {step} of {tmp_path} could not be saved: "
        second = f"\nthe newest intact checkpoint is {newest}; training continues"
        assert re.search(f"{re.escape(first)}.*{second}", done.stderr)
    assert done.stdout.count(f"checkpoint 21 of {tmp_path} could not be saved") == 2


def test_damaged_parameters_are_told_too(tmp_path):
    truncate_arrays(saved(tmp_path, 5, make=one_array) / "checkpoints" / "5")
    with pytest.raises(RunFailed, match="checkpoint 5 of .* cannot be read: .*\nif it is damaged"):
        restore_params(tmp_path, 5, one_array()["params"])


def test_a_whole_checkpoint_of_another_model_is_not_called_damaged(tmp_path):
    saved(tmp_path, 5, make=one_array)
    assert recovered(tmp_path) == 5
    with pytest.raises(
        RunFailed, match=r"5 of .* does not match this model: .*\nuse a different"
    ) as error:
        restored(tmp_path, 5, {"params": {"embedding": state().params["layers"]["query"]}})
    assert "damaged" not in str(error.value) and "away" not in str(error.value)


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    (tmp_path / "state" / "b").mkdir(parents=True)
    (tmp_path / "state" / "b" / "array").write_text("1")
    listed = os.listdir

    def refused(folder="."):
        if os.fspath(folder).endswith("b"):
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    assert list(manifest._files(epath.Path(tmp_path))) == ["state/b/array"]
    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(PermissionError):
        list(manifest._files(epath.Path(tmp_path)))
