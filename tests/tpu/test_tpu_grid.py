"""A grid on this machine: real arms, killed midway, finished by the same command."""

import argparse
import ast
import csv
import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sample_run import command_on_blocks

from fire_lm.errors import Preempted, RunFailed, UserError
from fire_lm.hardware.host import shares_of_cores
from tpu import grid_verb
from tpu.__main__ import main
from tpu.grid import Arm, Table, arms
from tpu.grid import run as run_grid
from tpu.grid_verb import local_grid
from tpu.job import Job
from tpu.local import LocalJobs, newest_line, only_grid

ROOT = Path(__file__).resolve().parents[2]
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
DRY = ["grid", "mini", "--local", "--dry_run", "--gin_file=configs/runs/quickstart.gin"]
ARMS = {f"{position}-seed{seed}" for position in ("fire", "alibi") for seed in (0, 1)}


def grid(blocks: Path, output: Path) -> subprocess.Popen[str]:
    flags = [
        flag
        for flag in command_on_blocks(blocks, output)[1:]
        if not flag.startswith(("--workdir", "--gin_file=configs/positions"))
    ]
    bindings = [
        "EVAL_LENGTHS=32,64",
        "length_sweep.tokens=2048",
        "length_sweep.tokens_per_batch=2048",
    ]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tpu", "grid", "mini", "--local", f"--output={output}"),
            *("--positions=fire,alibi", "--seeds=0,1", "--at_once=2", *flags),
            *(f"--gin.{binding}" for binding in bindings),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(output: Path) -> set[str]:
    return {mark.parent.parent.name for mark in output.glob("*/logs/done-*")}


def starts(output: Path) -> dict[str, int]:
    """Return how often each arm's commands ran, by the logs that they leave."""
    return {arm: len(list((output / arm / "logs").glob("*.txt"))) for arm in ARMS}


@pytest.mark.ci
def test_killed_midway_it_finishes_on_the_second_call(blocks, tmp_path):
    output = tmp_path / "mini"
    with grid(blocks, output) as first:
        deadline = time.monotonic() + 600
        # One arm is finished and the next one trains: 2 of 4 have started.
        while not done(output) or len(list(output.glob("*/metrics.jsonl"))) < 3:
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        first.kill()
        first.wait(120)
        before, began = done(output), starts(output)
    assert before and before != ARMS
    with grid(blocks, output) as second:
        assert second.stdout is not None
        said = second.stdout.read()
        assert second.wait(600) == 0, said
    assert done(output) == ARMS
    assert {arm: starts(output)[arm] for arm in before} == {arm: began[arm] for arm in before}
    with (output / "length_sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["run"], row["length"]) for row in rows} == {
        (arm, length) for arm in ARMS for length in ("32", "64")
    }
    assert (output / "length_sweep.png").stat().st_size > 10_000
    for arm in ARMS:
        assert f"{arm}: done" in said
        assert any(line.startswith(f"{arm} ") and " step " in line for line in said.splitlines())


@pytest.mark.ci
def test_a_grid_of_encoders_is_scored_by_a_measure_and_reported(blocks, tmp_path):
    flags = command_on_blocks(blocks, "", "--gin_file=configs/encoder.gin")[1:]
    flags = [f for f in flags if not f.startswith(("--workdir", "--gin_file=configs/positions"))]
    flags += ["--gin_file=configs/data/masked.gin", "--gin.pretrain.data=@MaskedText()"]
    flags += ["--gin.MaskedText.text=@Blocks()", "--at_once=1"]
    flags += ["--measure=fire_lm.measures.masked_accuracy.MaskedAccuracy"]
    command = ["grid", "mlm", "--local", f"--output={tmp_path}", "--positions=rope", *flags]
    assert main(command) == 0
    report = (tmp_path / "report" / "report.md").read_text()
    assert "masked_accuracy" in report and "rope" in report


def job(folder: Path, *program: str) -> Job:
    return Job("arm", ((sys.executable, "-c", "\n".join(program)),), str(folder))


@pytest.mark.parametrize(
    "code, error, words",
    [
        (2, UserError, "a configuration error: fire-lm: no such"),
        (1, RunFailed, "exit code 1: fire-lm: no such"),
    ],
)
def test_what_becomes_of_a_job_here(tmp_path, code, error, words):
    log = tmp_path / "logs" / "arm.txt"
    failing = job(tmp_path, "import sys", "print('fire-lm: no such')", f"sys.exit({code})")
    with pytest.raises(error, match=words) as raised:
        LocalJobs(restarts=0).run(failing, log)
    assert str(log) in str(raised.value)
    whole = job(tmp_path, "print('well')")
    LocalJobs(restarts=0).run(whole, log)
    assert Path(whole.mark).exists() and not Path(failing.mark).exists()


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_jobs_beside_each_other_have_different_cores_and_programs(tmp_path, monkeypatch):
    """Each job waits until the other has started, so both run at once."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    jobs = LocalJobs(restarts=0, at_once=2)

    def run(name: str, other: str) -> None:
        waits = (
            "import os, pathlib, time",
            f"pathlib.Path({str(tmp_path / name)!r}).write_text("
            "repr((os.sched_getaffinity(0), os.environ['JAX_COMPILATION_CACHE_DIR'])))",
            f"while not pathlib.Path({str(tmp_path / other)!r}).exists(): time.sleep(0.01)",
        )
        own = dataclasses.replace(job(tmp_path / f"job_{name}", *waits), name=name)
        jobs.run(own, tmp_path / f"log_{name}.txt")

    threads = [threading.Thread(target=run, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    first, second = (ast.literal_eval((tmp_path / name).read_text()) for name in "ab")
    assert first[0] | second[0] == CORES and not first[0] & second[0]
    shares = {str(tmp_path / "compiled" / f"share_{index}_of_2") for index in range(2)}
    assert {first[1], second[1]} == shares


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_the_cores_of_an_arm_do_not_depend_on_how_many_arms_are_left(tmp_path):
    """The last bits of results depend on the number of cores, so a resumed arm needs as many."""
    first, last = arms(["fire"], [0, 1], {})
    told = tmp_path / "cores"
    tell = f"open({str(told)!r}, 'w').write(repr(os.sched_getaffinity(0)))"
    jobs = {arm: job(tmp_path / arm.name, "import os", tell) for arm in (first, last)}
    Path(jobs[first].mark).parent.mkdir(parents=True)
    Path(jobs[first].mark).touch()
    local_grid(jobs, tmp_path, argparse.Namespace(dry_run=False, at_once=2))
    assert ast.literal_eval(told.read_text()) in map(set, shares_of_cores(2))
    only = {last: dataclasses.replace(jobs[last], folder=str(tmp_path / "only"))}
    local_grid(only, tmp_path, argparse.Namespace(dry_run=False, at_once=2))
    assert ast.literal_eval(told.read_text()) == CORES, "a grid of one arm"


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_job_does_not_use_the_cores_of_a_job_that_has_outlived_its_launcher(tmp_path):
    told = tmp_path / "cores"
    tell = f"open({str(told)!r}, 'w').write(repr(os.sched_getaffinity(0)))"
    with (tmp_path / "share_0_of_2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process of the earlier job does
        jobs = LocalJobs(restarts=0, at_once=2)
        jobs.run(job(tmp_path / "arm", "import os", tell), tmp_path / "arm.txt")
    assert ast.literal_eval(told.read_text()) == set(shares_of_cores(2)[1])


@pytest.mark.ci
def test_a_job_reuses_the_programs_of_earlier_jobs(tmp_path, monkeypatch):
    """JAX finds them in a folder beside the logs, or in the folder that the user has chosen."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    program = (
        "import jax",
        "from jax import monitoring",
        "monitoring.register_event_listener(lambda event, **_: print(event))",
        "jax.jit(lambda x: jax.numpy.sin(x) + 1)(2.0)",
    )
    logs = tmp_path / "logs"
    for name in ("first", "second"):
        arm = dataclasses.replace(job(tmp_path / name, *program), name=name)
        LocalJobs(restarts=0).run(arm, logs / f"{name}.txt")
    hit = "/jax/compilation_cache/cache_hits"
    assert [hit in (logs / f"{name}.txt").read_text() for name in ("first", "second")] == [0, 1]
    assert list((logs / "compiled" / "share_0_of_1").iterdir())
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "chosen")
    program = ("import os", "print(os.environ['JAX_COMPILATION_CACHE_DIR'])")
    arm = dataclasses.replace(job(tmp_path / "third", *program), name="third")
    LocalJobs(restarts=0).run(arm, logs / "third.txt")
    assert (logs / "third.txt").read_text().endswith("chosen\n")


def test_a_second_grid_in_a_folder_is_refused_at_once(tmp_path):
    with only_grid(tmp_path):
        words = f"{tmp_path} is in use by another grid: process {os.getpid()} on .* since 20"
        with pytest.raises(UserError, match=words):
            local_grid({}, tmp_path, argparse.Namespace(dry_run=False, at_once=1))
    with only_grid(tmp_path):
        pass


def test_a_job_that_outlived_its_launcher_is_told_with_its_launcher(tmp_path, capsys):
    jobs = LocalJobs(restarts=0)
    waiting = job(tmp_path / "arm", "print('well')")
    (tmp_path / "arm.lock").write_text("process 1 on host since noon")
    lock = (tmp_path / "arm.lock").open()
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.2, lock.close).start()
    jobs.run(waiting, tmp_path / "arm.txt")
    assert "waiting for it (started by process 1 on host since noon)" in capsys.readouterr().out
    assert (tmp_path / "arm.lock").read_text().startswith(f"process {os.getpid()} on ")


def test_stopped_jobs_save_and_no_more_begin(tmp_path):
    jobs, ready = LocalJobs(), tmp_path / "ready"
    waiting = job(
        tmp_path,
        "import pathlib, signal, sys, time",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))",
        f"pathlib.Path({str(ready)!r}).touch()",
        "time.sleep(60)",
    )
    raised: list[BaseException] = []

    def run() -> None:
        try:
            jobs.run(waiting, tmp_path / "arm.txt")
        except Preempted as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not ready.exists():
        time.sleep(0.01)
    jobs.stop()
    thread.join(30)
    assert not thread.is_alive() and "arm was stopped" in str(raised[0])
    with pytest.raises(Preempted, match="was not started"):
        jobs.run(waiting, tmp_path / "arm.txt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_an_announced_end_stops_the_jobs(number, monkeypatch):
    jobs, stopped = LocalJobs(), []
    monkeypatch.setattr(jobs, "stop", lambda: stopped.append(1))
    before = signal.getsignal(number)
    with jobs.signals():
        signal.raise_signal(number)
    assert stopped and signal.getsignal(number) is before


def test_an_arm_that_fails_leaves_the_others_going(capsys):
    chosen = arms(["fire", "rope"], [0, 1], {})

    def run_arm(arm: Arm) -> None:
        if arm.name == "fire-seed1":
            raise RunFailed("out of luck")

    with pytest.raises(RunFailed, match="1 of 4 arms failed\nfire-seed1: out of luck"):
        run_grid(
            chosen,
            run_arm,
            is_done=lambda arm: arm.name == "rope-seed1",
            progress=lambda arm: "step 7",
            at_once=2,
            stop=lambda: None,
        )
    said = capsys.readouterr().out
    assert "fire-seed1  FAILED  step 7" in said and "rope-seed0  done    step 7" in said


def test_running_arms_show_their_phase_once_and_the_grid_its_eta(capsys, monkeypatch):
    chosen = arms(["fire", "rope", "alibi"], [0], {})
    table = Table(chosen, lambda arm: "step 7", lambda arm: "scoring at length 64")
    now = 100.0
    monkeypatch.setattr("tpu.grid.time.monotonic", lambda: now)
    table.set(chosen[0], "running")
    table.show_running()
    table.show_running()
    now = 160.0
    table.set(chosen[0], "done")
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "[0/3] fire-seed0: running",
        "fire-seed0: scoring at length 64",
        "[1/3] fire-seed0: done after 1:00; ETA of the grid 2:00",
    ]


def test_the_eta_is_that_of_the_arms_that_ran_and_did_not_fail(capsys, monkeypatch):
    """The failed arm ran for 500 seconds, and one was done before the grid began."""
    chosen, now = arms(["fire", "rope", "alibi", "nope", "t5"], [0], {}), 0.0
    monkeypatch.setattr("tpu.grid.time.monotonic", lambda: now)

    def run_arm(arm: Arm) -> None:
        nonlocal now
        now += 500.0 if arm is chosen[0] else 60.0
        if arm is chosen[0]:
            raise RunFailed("out of luck")

    with pytest.raises(RunFailed, match="1 of 5 arms failed"):
        run_grid(
            chosen,
            run_arm,
            is_done=lambda arm: arm is chosen[3],
            progress=lambda arm: "",
            at_once=1,
            stop=lambda: None,
        )
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "] " in line and "running" not in line] == [
        "[1/5] nope-seed0: done",
        "[2/5] fire-seed0: FAILED out of luck",
        "[3/5] rope-seed0: done after 1:00; ETA of the grid 2:00",
        "[4/5] alibi-seed0: done after 1:00; ETA of the grid 1:00",
        "[5/5] t5-seed0: done",
    ]


@pytest.mark.parametrize(
    "output, newest",
    [
        ("compiling the training step ... 10 s ... 20 s ... ", "compiling the training step ..."),
        (
            "a\n[##--] 40/100  loss 2.1  19 tokens/s  ETA 0:04\n",
            "40/100  loss 2.1  19 tokens/s  ETA 0:04",
        ),
        ("", ""),
    ],
)
def test_the_newest_line_of_a_log_names_the_phase(output, newest, tmp_path):
    log = tmp_path / "arm.txt"
    log.write_text(output)
    assert newest_line(log) == newest
    assert newest_line(tmp_path / "none.txt") == ""


def test_the_results_of_other_arms_are_combined_although_an_arm_fails(tmp_path, monkeypatch):
    combined: list[list[str]] = []

    def half(jobs, folder, arguments):
        first, _ = jobs.values()
        Path(first.mark).parent.mkdir(parents=True)
        Path(first.mark).touch()
        raise RunFailed("1 of 2 arms failed")

    monkeypatch.setattr(grid_verb, "local_grid", half)
    monkeypatch.setattr(grid_verb, "check_local_grid", lambda *_: None)  # there is no data set
    monkeypatch.setattr(
        grid_verb,
        "_combine",
        lambda scoring, jobs, output: combined.append([j.folder for j in jobs]),
    )
    grid = [flag for flag in DRY if flag != "--dry_run"]
    assert main([*grid, "--positions=fire,rope", f"--output={tmp_path}"]) == 1
    assert combined == [[f"{tmp_path}/fire-seed0"]]
