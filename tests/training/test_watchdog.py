"""The watchdog ends a stalled job, in real processes, and reports late and lost processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from sample_run import tiny_run
from started_together import free_port

from fire_lm.checkpoints import Checkpointing
from fire_lm.errors import Preempted, RunFailed, UserError
from fire_lm.hardware import running_time
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.training import loop, watchdog
from fire_lm.training.goodput import COMPILE, DATA, DEVICES, SAVE, Goodput
from fire_lm.training.lock import Held
from fire_lm.training.loop import Job, run_steps
from fire_lm.training.preemption import StopFlag
from fire_lm.training.watchdog import Watch, Watchdog

ROOT = Path(__file__).resolve().parents[2]

# A loop of fast steps that stalls in the sixth.
LOOP = """
import sys, time
import jax
from fire_lm.processes import initialize_distributed
from fire_lm.training.goodput import DATA, DEVICES, Goodput
from fire_lm.training.watchdog import Watchdog

def stand_still(stage):
    goodput.enter(stage)
    time.sleep(1000)

initialize_distributed()
jax.devices()
silence = 5.0 if sys.argv[3] == "one after the other" else 15.0
settings = Watchdog(multiple=20.0, least_seconds=float(sys.argv[2]), silence_seconds=silence)
goodput = Goodput(sys.argv[1], quiet=jax.process_index() > 0)
with settings.watching(sys.argv[1], goodput) as watch:
    for step in range(1, 6):
        goodput.enter(DEVICES)
        time.sleep(0.05)
        watch.finished(step)
    print("fast", flush=True)
    if sys.argv[3] == "slow":
        time.sleep(2.5)
    elif sys.argv[3] == "one after the other":
        time.sleep(2.5 if jax.process_index() == 1 else 12.0)
    else:
        stand_still(DATA if jax.process_index() == 1 else DEVICES)
print("ended by itself", flush=True)
"""


def start(
    workdir: Path, least_seconds: float, last: str, count: int
) -> list[subprocess.Popen[str]]:
    job = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", LOOP, str(workdir), str(least_seconds), last],
            cwd=ROOT,
            env=os.environ | ({**job, "JAX_PROCESS_ID": str(index)} if count > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def test_a_step_that_takes_too_long_ends_the_process(tmp_path):
    (process,) = start(tmp_path, 3, "stop", 1)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "fast\n"), errors
    first, second = errors.strip().splitlines()[-2:]
    assert first.startswith("step 6 has taken ") and "(limit: 3 s)" in first
    assert "this process is waiting for the devices: stopped" in first
    assert "run the same command to resume; if steps are that slow, add --gin.Wa" in second
    assert "in stand_still" in (tmp_path / "stacks_0000.txt").read_text()


@pytest.mark.ci
def test_a_slow_step_within_the_limit_is_left_alone(tmp_path):
    (process,) = start(tmp_path, 6, "slow", 1)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "fast\nended by itself\n"), errors


@pytest.mark.ci
def test_a_run_that_was_stopped_by_a_signal_continues(tmp_path):
    """Ctrl-Z and `kill -STOP` stop a process for longer than a step may take."""
    (process,) = start(tmp_path, 6, "slow", 1)
    assert process.stdout is not None and process.stdout.readline() == "fast\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(8)
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "ended by itself\n"), errors


@pytest.mark.ci
def test_the_late_one_of_two_processes_is_named(tmp_path):
    processes = start(tmp_path, 4, "stop", 2)
    outputs = [process.communicate(timeout=120) for process in processes]
    host = socket.gethostname()
    late = f"process 1 ({host}, pid {processes[1].pid}) is waiting for data: stopped"
    assert any(late in errors for _, errors in outputs), outputs
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode != 0
        assert "process 0 (" not in errors or late in errors


@pytest.mark.ci
def test_a_killed_process_0_is_named_and_ends_the_job(tmp_path):
    """Process 1 is killed in a real run in test_multi_process.py."""
    processes = start(tmp_path, 300, "stop", 2)
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "fast\n"
    time.sleep(3)  # until the other has heard from it
    processes[0].send_signal(signal.SIGKILL)
    began = time.monotonic()
    _, errors = processes[1].communicate(timeout=90)
    assert processes[1].returncode != 0 and time.monotonic() - began < 60
    name = f"process 0 ({socket.gethostname()}, pid {processes[0].pid})"
    assert f"{name} has ended, and the other processes depend on it: stopped" in errors
    processes[0].communicate()


@pytest.mark.ci
def test_a_process_that_has_finished_is_not_lost(tmp_path):
    """Process 0 may still write to a slow bucket when the others have nothing left to do."""
    processes = start(tmp_path, 300, "one after the other", 2)
    for process in processes:
        output, errors = process.communicate(timeout=90)
        assert (process.returncode, output) == (0, "fast\nended by itself\n"), errors


@pytest.mark.parametrize(
    ("error", "shared"),
    [(None, True), (Preempted("x"), True), (RunFailed("x", everywhere=True), True),
     (RunFailed("x"), False)],
)  # fmt: skip
def test_only_an_error_of_one_process_is_told_to_the_others(tmp_path, monkeypatch, error, shared):
    """After such an error, the silence of the process must still be noticed."""
    left, told = [], mock.Mock()
    monkeypatch.setattr(Watch, "leave", lambda watch: left.append(watch))
    outcome = pytest.raises(type(error)) if error else contextlib.nullcontext()
    with outcome, Watchdog().watching(str(tmp_path), Goodput("", True)):
        if error:
            raise error
    monkeypatch.setattr(watchdog, "coordination_client", lambda: told)
    monkeypatch.setattr(watchdog.jax, "process_count", lambda: 2)
    monkeypatch.setattr(watchdog.jax, "process_index", lambda: 1)
    with outcome, watchdog.telling_others():
        if error:
            raise error
    assert (len(left), told.key_value_set.call_count) == (shared, not shared)


def test_a_process_that_has_finished_delays_nobody():
    peers = object.__new__(watchdog._Peers)
    peers._heard = {
        0: (f"8|20|process 0|{SAVE}", 0.0),
        1: (f"9|20|process 1|{watchdog.FINISHED}", 0.0),
    }
    assert peers.late() == f"process 0 is {SAVE}"


def test_the_limit_follows_the_median(tmp_path):
    """One long step, such as after a save, does not move the median as it would the mean."""
    watch = Watch(Watchdog(multiple=10.0, least_seconds=1.0), str(tmp_path), Goodput("", True))
    assert watch.limit() == 1.0
    watch._durations.extend([0.5, 0.5, 0.5, 60.0])
    assert watch.limit() == 5.0


class Ended(Exception):
    """Raised where the process would end."""


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Return a watch, its goodput, and a function that lets time pass while the watchdog looks."""
    now = [0.0]

    def end(watch: Watch, why: str, remedy: str) -> None:
        raise Ended(why)

    for module in (watchdog, running_time):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Watch, "_end", end)
    goodput = Goodput(str(tmp_path), quiet=True)
    watch = Watch(Watchdog(), str(tmp_path), goodput)

    def elapse(seconds: int, paused: int = 0) -> None:
        """Let time pass; the process stands still for the first `paused` seconds of it."""
        ends, pauses = now[0] + seconds, [paused]

        def wait(period: float) -> bool:
            now[0] += pauses.pop() if pauses and pauses[0] else period
            return now[0] > ends

        monkeypatch.setattr(watch, "stop", SimpleNamespace(wait=wait, is_set=lambda: False))
        watch.run()
        now[0] = ends

    return watch, goodput, elapse


@pytest.mark.parametrize(
    ("stage", "limit"), [(DATA, 300), (DEVICES, 300), (SAVE, 1800), (COMPILE, None)]
)
def test_what_a_stage_may_take(stage, limit, watched):
    """A save waits for storage, which may be slow; a longer wait means that it is stuck."""
    watch, goodput, elapse = watched
    watch.finished(5)
    goodput.enter(stage)
    elapse(limit or 100_000)
    if limit:
        with pytest.raises(Ended, match=rf"step 6 has taken {limit + 1} s \(limit: {limit} s\): "):
            elapse(1)


@pytest.mark.parametrize("stage", [DATA, DEVICES, SAVE])
def test_a_pause_is_not_a_hang(stage, watched):
    """A process that was stopped, frozen or suspended with its machine goes on; a hang ends it."""
    watch, goodput, elapse = watched
    watch.finished(5)
    goodput.enter(stage)
    for _ in range(3):
        elapse(10_090, paused=10_000)
    with pytest.raises(Ended, match="step 6 has taken"):
        elapse(2000)


def test_a_pause_does_not_raise_the_limit(watched):
    watch, goodput, elapse = watched
    goodput.enter(DEVICES)
    elapse(10_000, paused=9_990)
    watch.finished(1)
    assert watch.limit() < 500


def test_processes_that_were_paused_together_are_not_lost(monkeypatch):
    """They may continue one after another, and the first finds old messages of the others."""
    now = [0.0]
    monkeypatch.setattr(running_time, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = running_time.RunningTime()
    peers = object.__new__(watchdog._Peers)
    peers._clock, peers._count = clock, 2
    peers._heard = {index: (f"1|0|process {index}|starting", 0.0) for index in range(2)}
    now[0] = 1000.0
    assert not peers.lost(45.0)
    for _ in range(50):
        now[0] += 1.0
        clock.seconds()
    assert peers.lost(45.0)


def steps_of(run, goodput, watch, save, step, evaluate=None) -> bool:
    """Train with a stand-in for everything but the loop and the watch."""
    batches, saves, reporter = mock.MagicMock(), mock.Mock(save=save), mock.Mock(sound=True)
    batches.__next__.side_effect = lambda: {"targets": np.zeros((4, 1), np.int32)}
    reporter.counters = {"recent_losses": []}
    saves.reached_preemption.return_value = False
    job = Job("", True, goodput, watch, StopFlag(), saves, Held())
    mesh, state = make_mesh(MeshShape()), mock.Mock()
    return run_steps(run, job, reporter, batches, mesh, step, state, 0, None, evaluate)


def test_an_evaluation_is_no_part_of_the_duration_of_a_step(watched, monkeypatch):
    """The limit of a step follows from the durations of those before."""
    watch, goodput, elapse = watched
    monkeypatch.setattr(loop, "evaluation_params", lambda *_: None)

    def step(state: Any, batch: Any) -> tuple[Any, dict[str, float]]:
        elapse(20)
        return state, {"loss": 1.0, "grad_norm": 1.0}

    evaluation: Any = SimpleNamespace(every=2, lengths=())
    run = tiny_run(train_steps=4, evaluation=evaluation)
    steps_of(run, goodput, watch, mock.Mock(), step, lambda _: elapse(200) or {})
    assert list(watch._durations) == [20] * 4 and watch.limit() == 600


@pytest.mark.parametrize("save_seconds", [1700, 2000])
def test_a_slow_save_is_left_alone_and_a_stuck_one_is_not(save_seconds, watched):
    """This runs the training loop, in which the time of the save does not count for later steps."""
    watch, goodput, elapse = watched
    saved: list[int] = []

    def step(state: Any, batch: Any) -> tuple[Any, dict[str, float]]:
        elapse(1)
        return state, {}

    def save(number: int, *_: Any, **__: Any) -> None:
        elapse(save_seconds)
        saved.append(number)

    run = tiny_run(train_steps=6, checkpoints=Checkpointing(save_every=2))

    def train() -> bool:
        return steps_of(run, goodput, watch, save, step)

    if save_seconds < 1800:
        assert not train() and saved == [2, 4, 6]
    else:
        with pytest.raises(Ended, match="limit: 1800 s\\): this process is saving"):
            train()
        assert not saved


@pytest.mark.parametrize(
    "setting",
    ["multiple=0", "multiple=inf", "least_seconds=1e-9", "silence_seconds=1e-9",
     "silence_seconds=1e15", "silence_seconds=nan"],
)  # fmt: skip
def test_settings_that_cannot_work(setting):
    """A process reports once per second, so that shorter limits cannot work."""
    name, _, value = setting.partition("=")
    with pytest.raises(UserError, match=f"Watchdog.{name} is {float(value)}: it must be"):
        Watchdog(**{name: float(value)})
