"""The watchdog ends what stands still, in real processes, and names the late and the lost."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fire_lm.errors import UserError
from fire_lm.training.goodput import Goodput
from fire_lm.training.watchdog import Watch, Watchdog

ROOT = Path(__file__).resolve().parent.parent

# A loop of fast steps that comes to stand in the sixth.
LOOP = """
import sys, time
import jax
from fire_lm.sharding import initialize_distributed
from fire_lm.training.goodput import DATA, DEVICES, Goodput
from fire_lm.training.watchdog import Watchdog

def stand_still(stage):
    goodput.enter(stage)
    time.sleep(1000)

initialize_distributed()
jax.devices()
settings = Watchdog(multiple=20.0, least_seconds=float(sys.argv[2]), silence_seconds=15.0)
goodput = Goodput(sys.argv[1], quiet=jax.process_index() > 0)
with settings.watching(sys.argv[1], goodput) as watch:
    for step in range(1, 6):
        goodput.enter(DEVICES)
        time.sleep(0.05)
        watch.finished(step)
    print("fast", flush=True)
    if sys.argv[3] == "slow":
        time.sleep(2.5)
    else:
        stand_still(DATA if jax.process_index() == 1 else DEVICES)
print("ended by itself", flush=True)
"""


def start(
    workdir: Path, least_seconds: float, last: str, count: int
) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    job = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
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
    assert first.startswith("step 6 has taken ") and "more than 3" in first
    assert "this process is waiting for the devices: stopped" in first
    assert second.endswith("the same command resumes")
    assert "in stand_still" in (tmp_path / "stacks_0000.txt").read_text()


def test_a_slow_step_within_the_limit_is_left_alone(tmp_path):
    (process,) = start(tmp_path, 6, "slow", 1)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "fast\nended by itself\n"), errors


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
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_peer_is_named_and_ends_the_job(tmp_path, killed):
    processes = start(tmp_path, 300, "stop", 2)
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "fast\n"
    time.sleep(3)  # it has been heard of
    processes[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    survivor = processes[1 - killed]
    _, errors = survivor.communicate(timeout=90)
    assert survivor.returncode != 0 and time.monotonic() - began < 60
    name = f"process {killed} ({socket.gethostname()}, pid {processes[killed].pid})"
    silent, gone = "not heard of for 15 s at step 6", "is gone, on whom the others depend"
    assert f"{name} {silent if killed else gone}: stopped" in errors
    processes[killed].communicate()


def test_the_limit_follows_the_median(tmp_path):
    """Not the mean: one long step, as after a save of the host's, does not move it."""
    watch = Watch(Watchdog(multiple=10.0, least_seconds=1.0), str(tmp_path), Goodput("", True))
    assert watch.limit() == 1.0
    watch._durations.extend([0.5, 0.5, 0.5, 60.0])
    assert watch.limit() == 5.0


@pytest.mark.parametrize(
    "setting",
    ["multiple=0", "multiple=inf", "least_seconds=1e-9", "silence_seconds=1e-9",
     "silence_seconds=1e15", "silence_seconds=nan"],
)  # fmt: skip
def test_settings_that_cannot_work(setting):
    """A process tells of itself once a second."""
    name, _, value = setting.partition("=")
    with pytest.raises(UserError, match=f"Watchdog.{name} is {float(value)}: it must be"):
        Watchdog(**{name: float(value)})
