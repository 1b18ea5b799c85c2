"""fire_lm.checkpoints: what is saved comes back; what is damaged or does not fit is told."""

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fire_lm import checkpoints
from fire_lm.checkpoints import (
    Checkpointing,
    Checkpoints,
    available_steps,
    manifest,
    restore_params,
    writer,
)
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.training.step import TrainState

POSITION = b"\x00where\xff" * 100
INFO = {"tokens": 12_345, "documents_skipped": 2}


def state(devices: int = 1, scale: float = 1.0) -> TrainState:
    """A small state of `scale`, split over the devices where a dimension is 4."""
    mesh = jax.make_mesh((devices,), ("fsdp",), (AxisType.Auto,), devices=jax.devices()[:devices])

    def array(*shape: int) -> jax.Array:
        values = scale * np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        spec = PartitionSpec(*("fsdp" if size == 4 else None for size in shape))
        return jax.device_put(values, NamedSharding(mesh, spec))

    params = {
        "embedding": array(4, 3),
        "layers": {"query": {"kernel": array(2, 4)}, "position": {"c": array(2), "L": array(2)}},
    }
    moments = jax.tree.map(lambda x: x / 8, params)
    return TrainState(jax.device_put(jnp.int32(7), array().sharding), params, (moments, ()))


def saved(folder: Path, *steps: int, make: Any = state, **policy: int) -> Path:
    """A run that has saved `make(scale=step)`, from four devices, at each of the steps."""
    with contextlib.closing(Checkpoints(folder, Checkpointing(**policy))) as writer:
        for step in steps:
            writer.save(step, make(4, scale=step), POSITION, INFO)
    return folder


def restored(folder: Path, step: int, like: Any) -> tuple[Any, bytes, dict[str, Any]]:
    with contextlib.closing(Checkpoints(folder, Checkpointing())) as reader:
        found = reader.restore(step, like)
        assert found is not None
        return found


def recovered(folder: Path) -> int:
    with contextlib.closing(Checkpoints(folder, Checkpointing())) as writer:
        return writer.recover()


def assert_equal(found: Any, expected: Any) -> None:
    def compare(x: jax.Array, y: jax.Array) -> None:
        assert (x.dtype, x.sharding) == (y.dtype, y.sharding)
        np.testing.assert_array_equal(x, y)

    jax.tree.map(compare, found, expected)


@pytest.mark.parametrize("devices", [4, 2, 1])
def test_everything_comes_back_on_any_number_of_devices(tmp_path, devices):
    """Saved from four devices."""
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
    """Of those that have been evaluated and are still there."""
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
    assert "no checkpoint removed: the table is damaged" in capsys.readouterr().err


def test_a_power_cut_after_a_removal_finds_the_new_step_on_disk(tmp_path, monkeypatch):
    """All of it is on disk, and so is its name, before the step before is removed."""
    told: list[str] = []

    def noting(file: int) -> None:
        told.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    fsync, remove_step = os.fsync, writer._remove
    saved(tmp_path, 3, make=one_array, keep_last=1)
    folder = (tmp_path / "checkpoints").resolve()
    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(writer, "_remove", lambda step: told.append("removed") or remove_step(step))
    saved(tmp_path, 5, make=one_array, keep_last=1)
    assert available_steps(tmp_path) == [5]
    before = told[: told.index("removed")]
    files = [str(path) for path in (folder / "5").rglob("*") if path.name != "manifest.sha256"]
    assert {*files, str(folder / "5" / f"manifest.sha256.{os.getpid()}.tmp")} <= set(before)
    assert before[-2:] == [str(folder / "5"), str(folder)], "the names, once they are there"


KILLED_WHILE_REMOVING = """
import os, sys
from etils import epath
from fire_lm.checkpoints import writer

def killed(self, *_, **__):
    os._exit(9)

type(epath.Path(sys.argv[1])).rmtree = killed
writer._remove(epath.Path(sys.argv[1]))
"""


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
    with pytest.raises(UserError, match=r"has no checkpoint 4, only \[3, 5\]"):
        checkpoints.choose_step(tmp_path, 4)
    with pytest.raises(UserError, match="nothing here holds no complete checkpoint"):
        checkpoints.choose_step("nothing here", None)


def test_split_run():
    assert checkpoints.split_run("runs/fire") == ("runs/fire", None)
    assert checkpoints.split_run("runs/fire@20") == ("runs/fire", 20)
    assert checkpoints.split_run("gs://me@here/run@20") == ("gs://me@here/run", 20)
    for wrong in ("last", "²", "٣", "-1", "", "9" * 5000):
        with pytest.raises(UserError, match=f"'runs/fire@{wrong}': after @ comes a step .*@1000"):
            checkpoints.split_run(f"runs/fire@{wrong}")


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


# --- Damage.


def one_array(devices: int = 1, scale: float = 1.0) -> dict[str, Any]:
    """Of several arrays, the reads that Orbax gives up would complain during later tests."""
    return {"params": {"embedding": state(devices, scale).params["embedding"]}}


def truncate_arrays(folder: Path) -> None:
    """Cuts every data file of the arrays in half."""
    files = [path for path in folder.glob("state/**/d/*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, draw: random.Random) -> None:
    """One bit."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def test_forty_damages_are_forty_detections(tmp_path, capsys):
    """In random files of all, at random places; each time the step before is whole."""
    whole = saved(tmp_path / "whole", 3, 5, make=one_array)
    files = sorted(path for path in (whole / "checkpoints" / "5").rglob("*") if path.is_file())
    assert len(files) > 10
    draw = random.Random(0)
    assert recovered(whole) == 5
    for number in range(40):
        run = shutil.copytree(whole, tmp_path / str(number))
        damaged = run / files[number % len(files)].relative_to(whole)  # every one has its turn
        draw.choice([flip, flip, cut, remove])(damaged, draw)
        kind = RunFailed if damaged.exists() else FireLMError
        with pytest.raises(kind, match="checkpoint 5 of .* is damaged: |has no checkpoint 5, only"):
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
    """Never begins again in silence: that would drop what the run has logged."""
    folder = saved(tmp_path, 3, 5, make=one_array) / "checkpoints"
    for step in (3, 5):
        truncate_arrays(folder / str(step))
    with pytest.raises(RunFailed, match=r"every checkpoint of .* is damaged: \[3, 5\]"):
        checkpoints.choose_step(tmp_path, None)
    with pytest.raises(RunFailed, match=r"no checkpoint of .* is whole \(5: .*; 3: .*\nto begin"):
        recovered(tmp_path)
    assert checkpoints.available_steps(tmp_path) == [3, 5], "nothing has been moved"


def test_a_first_save_that_never_ended_is_set_aside(tmp_path, capsys):
    folder = saved(tmp_path, 5, make=one_array) / "checkpoints"
    (folder / "5" / "manifest.sha256").unlink()
    assert recovered(tmp_path) == 0
    assert [path.name for path in folder.iterdir()] == ["5.unfinished"]
    assert "(its save never finished): kept as 5.unfinished; starting" in capsys.readouterr().err


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
    """Also if the storage refuses to say what it has."""

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


@pytest.mark.parametrize(
    "setting",
    ["save_every=0", "keep_last=0", "keep_every=0", "keep_best=-1", "failures_allowed=-1"],
)
def test_a_policy_that_cannot_work(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(UserError, match=f"Checkpointing.{name} is"):
        Checkpointing(**{name: int(value)})


def test_a_file_that_nobody_wrote_is_no_damage(tmp_path):
    (saved(tmp_path, 3) / "checkpoints" / "3" / "notes.txt").write_text("mine")
    assert recovered(tmp_path) == 3


def test_another_number_of_processes_is_not_taken_for_damage(tmp_path):
    position = saved(tmp_path, 5) / "checkpoints" / "5" / "position"
    (position / "process_0000_of_0001").rename(position / "process_0000_of_0002")
    with pytest.raises(UserError, match="written by another number of processes"):
        restored(tmp_path, 5, state(4))


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


def test_saves_on_a_full_disk(tmp_path):
    """Training goes on after two in a row, not after three, and says so at once."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert available_steps(tmp_path) == [3, 9, 15]
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["15", "3", "9"]
    for step, newest in ((5, 3), (7, 3), (11, 9), (13, 9), (17, 15), (19, 15)):
        first = f"checkpoint {step} of {tmp_path} could not be saved: "
        second = f"\nthe newest intact checkpoint is {newest}; training goes on"
        assert re.search(f"{re.escape(first)}.*{second}", done.stderr)
    assert done.stdout.count(f"checkpoint 21 of {tmp_path} could not be saved") == 2


def test_damaged_parameters_are_told_too(tmp_path):
    truncate_arrays(saved(tmp_path, 5, make=one_array) / "checkpoints" / "5")
    with pytest.raises(RunFailed, match="checkpoint 5 of .* cannot be read: .*\nif it is damaged"):
        restore_params(tmp_path, 5, one_array()["params"])


def test_a_whole_checkpoint_of_another_model_is_not_called_damaged(tmp_path):
    saved(tmp_path, 5, make=one_array)
    assert recovered(tmp_path) == 5
    with pytest.raises(RunFailed, match="5 of .* does not fit .*\nuse a different --work") as error:
        restored(tmp_path, 5, {"params": {"embedding": state().params["layers"]["query"]}})
    assert "damaged" not in str(error.value) and "away" not in str(error.value)


# --- Parameters alone, from a run that may differ.


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
    with pytest.raises(UserError, match=r"@5 lacks layers/position/mlp/bias\n.*init_allow_missing"):
        restore_params(tmp_path, 5, wanted)
    with pytest.raises(UserError, match="lacks layers/position/mlp/bias"):
        restore_params(tmp_path, 5, wanted, allow_missing=["layers/query/*"])
    found, missing = restore_params(tmp_path, 5, wanted, allow_missing=["layers/position/*"])
    assert missing == ["layers/position/mlp/bias"]
    position = found["layers"]["position"]
    assert_equal(position["mlp"]["bias"], wanted["layers"]["position"]["mlp"]["bias"])  # fresh
    assert_equal(position["c"], state(scale=5).params["layers"]["position"]["c"])


def test_left_over_leaves_are_refused_unless_listed(tmp_path):
    saved(tmp_path, 5)
    wanted = state().params
    del wanted["layers"]["position"]
    with pytest.raises(
        UserError, match="left over layers/position/L, layers/position/c\n.*init_allow_unused"
    ):
        restore_params(tmp_path, 5, wanted)
    with pytest.raises(UserError, match="left over layers/position/c\n"):
        restore_params(tmp_path, 5, wanted, allow_unused=["*/L"])
    found, _ = restore_params(tmp_path, 5, wanted, allow_unused=["layers/position/*"])
    assert_equal(found["embedding"], state(scale=5).params["embedding"])
    assert "position" not in found["layers"]


def test_another_shape_is_refused(tmp_path):
    wanted = state().params | {"embedding": jnp.ones((8, 3))}
    with pytest.raises(
        UserError, match=r"'embedding' has shape \(4, 3\) in .*@5, but \(8, 3\) in this model"
    ):
        restore_params(saved(tmp_path, 5), 5, wanted, allow_missing=["*"], allow_unused=["*"])


def test_a_bucket_is_not_taken_for_a_local_folder():
    assert checkpoints.checkpoint_directory("gs://b/run").as_posix() == "gs://b/run/checkpoints"
    assert checkpoints.checkpoint_directory("run").is_absolute()
