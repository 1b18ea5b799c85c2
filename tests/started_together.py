"""Processes of one job on this machine that find one another as the hosts of a pod do."""

import contextlib
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from environments import with_devices

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    """Return a free port below the range of ephemeral ports."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def start_together(
    arguments: list[str], processes: int, module: tuple[str, ...] = ("-m", "fire_lm")
) -> list[subprocess.Popen[str]]:
    address = f"127.0.0.1:{free_port()}"
    environment = with_devices(1)
    environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
    return [
        subprocess.Popen(
            [sys.executable, *module, *arguments],
            cwd=ROOT,
            env=environment | {"JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(processes)
    ]


def finish(started: list[subprocess.Popen[str]], seconds: float = 300) -> list[str]:
    """Wait for all processes to end and return their outputs."""
    try:
        return [process.communicate(timeout=seconds)[0] for process in started]
    finally:
        for process in started:
            process.kill()


def run_together(arguments: list[str], processes: int, resumed: int = 0) -> None:
    """Train with several processes to the end, and check at which step the run resumed."""
    started = start_together(arguments, processes)
    outputs = finish(started)
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    assert ["loss" in output for output in outputs] == [True] + [False] * (processes - 1)
    found = re.search(r"resuming from step (\d+) \.\.\.", outputs[0])
    assert int(found[1] if found else 0) == resumed, outputs[0][-3000:]


def wait_for_step(workdir: Path, step: int, started: list[subprocess.Popen[str]]) -> None:
    file = workdir / "metrics.jsonl"
    give_up = time.monotonic() + 240
    while not (file.exists() and f'"step": {step},' in file.read_text()):
        assert time.monotonic() < give_up
        assert all(process.poll() is None for process in started), finish(started)
        time.sleep(0.01)
