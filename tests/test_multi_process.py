"""Two processes on one machine train one model, save together and resume together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sample_run import command, logged, write_text

from fire_lm.checkpoints import available_steps

ROOT = Path(__file__).resolve().parent.parent


def run_together(arguments: list[str], processes: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "fire_lm", *arguments],
            cwd=ROOT,
            env=environment | {"JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    assert "loss" in outputs[0] and "loss" not in outputs[1], "process 0 alone speaks"


@pytest.mark.ci
def test_two_processes_train_and_resume_to_the_same_bits(tmp_path):
    data_dir = write_text(tmp_path / "data")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_together(command(data_dir, whole), 2)
    run_together(command(data_dir, stopped), 2)
    for name in ("10", "12"):
        (stopped / "checkpoints" / name).rename(tmp_path / f"away_{name}")
    assert available_steps(stopped) == [5]
    run_together(command(data_dir, stopped), 2)

    positions = sorted(path.name for path in (whole / "checkpoints/12/position").glob("process*"))
    assert positions == ["process_0000_of_0002", "process_0001_of_0002"]
    columns = ("step", "tokens", "loss", "grad_norm")
    assert len(logged(whole)) == 12
    for ours, theirs in zip(logged(stopped), logged(whole), strict=True):
        assert {n: ours[n] for n in columns} == {n: theirs[n] for n in columns}
