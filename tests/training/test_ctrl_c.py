"""Signals that save and end a run; a second Ctrl-C ends it at once."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from sample_run import command_on_blocks, tiny_run

from fire_lm.checkpoints import available_steps
from fire_lm.errors import Preempted
from fire_lm.training import loop
from fire_lm.training.preemption import ctrl_c_saves, sigterm_flag


def test_the_first_ctrl_c_is_noted_and_the_second_left_to_the_system():
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler  # see conftest.py
    with sigterm_flag() as flag:
        with pytest.raises(KeyboardInterrupt):  # before the first step there is nothing to save
            signal.raise_signal(signal.SIGINT)
        with ctrl_c_saves(flag):
            signal.raise_signal(signal.SIGINT)
            assert (flag.requested, flag.by) == (True, "Ctrl-C")
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # while the last save is written
    assert signal.getsignal(signal.SIGINT) is before
    with sigterm_flag() as flag, ctrl_c_saves(flag):
        pass
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("saved", [2, 3])
def test_a_signal_in_the_last_step_ends_a_complete_run(saved, tmp_path, monkeypatch):
    """There is nothing to resume, so a batch system need not start the run again."""
    job = mock.MagicMock(quiet=True)
    job.checkpoints.recover.return_value, job.checkpoints.newest.return_value = 0, saved
    monkeypatch.setattr(loop, "job_in", lambda *_: contextlib.nullcontext(job))
    monkeypatch.setattr(loop, "train", lambda *_: True)
    stops = contextlib.nullcontext() if saved == 3 else pytest.raises(Preempted)
    with stops:
        loop.pretrain(tiny_run(train_steps=3), str(tmp_path))


@pytest.mark.parametrize(("processes", "heeded"), [(1, True), (2, False)])
def test_sigterm_sets_a_flag_in_a_process_that_is_alone(processes, heeded, monkeypatch):
    """In a job of several processes, JAX handles the signal, so all stop after the same step."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    monkeypatch.setattr("jax.process_count", lambda: processes)
    try:
        with sigterm_flag() as flag:
            assert not flag.requested
            signal.raise_signal(signal.SIGTERM)
            assert (flag.requested, flag.by) == (heeded, "SIGTERM")
        signal.raise_signal(signal.SIGTERM)
        assert len(got) == (1 if heeded else 2), "the handler before is back"
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
@pytest.mark.parametrize("processes", [1, 2])
def test_other_announcements_of_the_end_are_like_sigterm(number, processes, monkeypatch):
    """A terminal is closed, or a batch system warns. JAX knows only SIGTERM."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    monkeypatch.setattr("jax.process_count", lambda: processes)
    try:
        with sigterm_flag() as flag:
            signal.raise_signal(number)
            assert (flag.requested, flag.by) == (processes == 1, number.name)
        assert len(got) == processes - 1
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_hangup_changes_nothing(monkeypatch):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with sigterm_flag() as flag:
            signal.raise_signal(signal.SIGHUP)
            assert not flag.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def interrupted(
    arguments: list[str], workdir: Path, times: int, by: signal.Signals = signal.SIGINT
) -> tuple[int, str]:
    """Send a run a signal once it has logged a step; return its exit code and error output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fire_lm", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = len(metrics(workdir))
    while len(metrics(workdir)) == first:
        assert process.poll() is None
        time.sleep(0.05)
    for _ in range(times):
        process.send_signal(by)
        time.sleep(0.02)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def metrics(workdir: Path) -> list[str]:
    path = workdir / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.ci
def test_one_ctrl_c_or_a_hangup_saves_and_a_second_ctrl_c_ends_at_once(blocks, tmp_path):
    workdir = tmp_path / "run"
    arguments = command_on_blocks(blocks, workdir, "--gin.TRAIN_STEPS=100000")
    code, errors = interrupted(arguments, workdir, times=1)
    assert code == 3 and "press Ctrl-C again to stop at once" in errors, errors
    saved = re.search(r"stopped by Ctrl-C after step (\d+), which is saved", errors)
    assert saved and available_steps(workdir)[-1] == int(saved[1])
    code, errors = interrupted(arguments, workdir, times=2, by=signal.SIGHUP)
    assert code == 3 and "stopped by SIGHUP after step" in errors, errors
    code, errors = interrupted(arguments, workdir, times=2)
    assert code == -signal.SIGINT and "Traceback" not in errors, errors
