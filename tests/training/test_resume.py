"""A run that is killed again and again ends with the same bits as one that never was.

The real command runs in processes of its own, on one device. test_training.py shows that the
comparison would notice a faulty resume: there, a run reads its text from the start again.
"""

import functools
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from environments import with_devices
from sample_run import assert_same_state, command, command_on_blocks, logged, saved_state

from fire_lm.training.goodput import COMPILE, DEVICES, START, STOPPED, account

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds


def start(arguments: list[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fire_lm", *arguments],
        cwd=ROOT,
        env=with_devices(1),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors


def stop(process: subprocess.Popen[str], when: Callable[[], object], by: signal.Signals) -> str:
    """Send the signal once `when()` is true; return what the process wrote to stderr."""
    give_up = time.monotonic() + PATIENCE
    while not when():
        assert process.poll() is None, f"ended too early: {process.communicate()[1]}"
        assert time.monotonic() < give_up
        time.sleep(0.001)
    process.send_signal(by)
    return process.communicate(timeout=PATIENCE)[1]


def steps_logged(workdir: Path) -> list[int]:
    """Return the steps in complete lines, because a kill may truncate the last line."""
    file = workdir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [int(line.split()[1].strip(",")) for line in lines if line.endswith("}\n")]


def saves_under_way(
    workdir: Path, but_for: Collection[tuple[str, int]] = ()
) -> set[tuple[str, int]]:
    """Return the directories of unfinished saves, by name and inode, except `but_for`."""
    folder = workdir / "checkpoints"
    entries = os.scandir(folder) if folder.exists() else ()
    found = {(e.name, e.inode()) for e in entries if e.name.endswith(".orbax-checkpoint-tmp")}
    return found.difference(but_for)


def kill_at(arguments: list[str], workdir: Path, step: int, pause: float) -> None:
    """Kill the run `pause` seconds after it has logged `step`."""

    def reached() -> bool:
        if step not in steps_logged(workdir):
            return False
        time.sleep(pause)
        return True

    process = start(arguments)
    stop(process, reached, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def kill_while_saving(arguments: list[str], workdir: Path) -> None:
    for _ in range(5):  # retry, as a save may complete just before the signal arrives
        new = functools.partial(saves_under_way, workdir, saves_under_way(workdir))
        process = start(arguments)
        stop(process, new, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        if new():
            return
    raise AssertionError("never killed during a save")


def terminate_at(arguments: list[str], workdir: Path, step: int) -> None:
    process = start(arguments)
    errors = stop(process, lambda: step in steps_logged(workdir), signal.SIGTERM)
    assert process.returncode == 3, errors
    assert "run the same command to resume" in errors


ENCODER = ("--gin_file=configs/encoder.gin", "--gin_file=configs/data/masked.gin")


@pytest.mark.ci
@pytest.mark.parametrize(
    "construction, files",
    [
        ("concat", ()),
        pytest.param("cut", (), marks=pytest.mark.slow),
        pytest.param("concat", ENCODER, marks=pytest.mark.slow, id="encoder"),
    ],
)
def test_killed_twice_and_still_bit_equal(construction, files, data_dir, tmp_path):
    killed_and_whole(construction, data_dir, tmp_path, 1, 1, files)


@pytest.mark.slow
def test_killed_twenty_times_and_still_bit_equal(data_dir, tmp_path):
    killed_and_whole("concat", data_dir, tmp_path, kills=14, while_saving=6)


def killed_and_whole(
    construction: str,
    data_dir: Path,
    tmp_path: Path,
    kills: int,
    while_saving: int,
    files: Sequence[str] = (),
) -> None:
    """Kill a run at random and while it saves, stop it once by SIGTERM, then let it finish.

    Its results must equal those of an uninterrupted run.
    """
    steps = 100 * (kills + while_saving) + 100
    bindings = [f"TRAIN_STEPS={steps}", f"TextData.construction={construction}"]
    bindings += ["build_decoder.dropout=0.1", "build_decoder.attention_dropout=0.1"]
    more = [f"--gin.{binding}" for binding in [*bindings, "Checkpointing.save_every=16"]]
    more += files
    # The uninterrupted run, at the same time and timed by a clock of our own.
    spawned = time.monotonic()
    whole = start(command(data_dir, tmp_path / "whole", *more), stdout=subprocess.PIPE)
    seen: dict[str, float] = {}
    clock = threading.Thread(target=when_seen, args=(whole, ["compiling", " s\n", "loss"], seen))
    clock.start()

    draw = random.Random(construction)
    workdir, began = tmp_path / "killed", time.time()
    arguments = command(data_dir, workdir, *more)
    kinds = ["saving"] * while_saving + ["any"] * kills
    draw.shuffle(kinds)
    for number, kind in enumerate(kinds):
        if kind == "saving":
            kill_while_saving(arguments, workdir)
        else:
            reached = max(steps_logged(workdir), default=0)
            soonest = max(reached + 1, 100 * number)
            at = draw.randrange(soonest, soonest + 60)
            kill_at(arguments, workdir, at, draw.uniform(0, 0.1))
        assert_each_step_once(workdir)
    terminate_at(arguments, workdir, max(steps_logged(workdir)) + 20)
    last = start(arguments, stdout=subprocess.PIPE)
    assert last.stdout is not None
    resumed = False
    for line in last.stdout:
        resumed |= line.startswith("resuming from step ")
        if line.startswith("done: "):
            break
    else:
        raise AssertionError(last.communicate()[1])
    assert resumed
    wall = time.time() - began  # excludes the time that Python takes to exit
    finish(last)
    clock.join()
    finish(whole)

    assert_each_step_once(workdir)
    assert steps_logged(workdir)[-1] == steps
    total = account(str(workdir))
    assert abs(sum(total.values()) - wall) < 0.02 * wall, total
    assert min(total[stage] for stage in (DEVICES, START, COMPILE, STOPPED)) > 0
    once = account(str(tmp_path / "whole"))
    compiled = seen[" s\n"] - seen["compiling"]
    assert abs(once[COMPILE] - compiled) < max(0.5, 0.1 * compiled), (once, seen)
    started = seen["loss"] - spawned - compiled
    assert abs(once[START] - started) < max(1.0, 0.15 * started), (once, seen)
    assert logged(workdir) == logged(tmp_path / "whole")
    assert_same_state(workdir, tmp_path / "whole", steps)


def when_seen(process: subprocess.Popen[str], words: list[str], seen: dict[str, float]) -> None:
    """Read all that a process prints; store when each word came, searching in order."""
    assert process.stdout is not None
    left, text = list(words), ""
    while letters := os.read(process.stdout.fileno(), 4096).decode(errors="replace"):
        now, text = time.monotonic(), text + letters
        while left and left[0] in text:
            text = text.partition(left[0])[2]
            seen[left.pop(0)] = now
        text = text if left else ""


def assert_each_step_once(workdir: Path) -> None:
    steps = steps_logged(workdir)
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.ci
def test_a_full_disk_does_not_end_the_run(blocks, tmp_path):
    """For a while, no file of the process may grow beyond 2 kB."""
    workdir = tmp_path / "run"
    arguments = command_on_blocks(blocks, workdir, "--gin.TRAIN_STEPS=400")
    process = start([*arguments, "--gin.Checkpointing.failures_allowed=100"])
    assert process.stderr is not None
    while not steps_logged(workdir) or steps_logged(workdir)[-1] < 40:
        assert process.poll() is None
        time.sleep(0.01)
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2000, unlimited))
    told = next(line for line in process.stderr if "could not be saved" in line)
    time.sleep(1)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "training continues" in errors, told + errors
    assert saved_state(workdir, 400)
