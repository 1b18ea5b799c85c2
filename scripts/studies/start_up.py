"""The time from the command `fire-lm pretrain` to the first step of the quick start.

usage: .venv/bin/python scripts/studies/start_up.py DATA_DIR [--encodings fire,nope] [--rounds 2]

DATA_DIR is what `fire-lm corpus --data_dir=DATA_DIR` wrote. A round of an encoding is a start
without kept programs (off), the first start with an empty cache, and the second start.
The table has the least CPU time of the rounds, in seconds of one core (other work on the machine
hardly changes it), and the least wall time to the first step. Everything is written to a temporary
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import command

from fire_lm.cli.argument_types import number
from fire_lm.console import columns
from fire_lm.errors import RunFailed

_CPU_BEFORE_STEP = """
import resource, sys
from fire_lm import cli
from fire_lm.training import loop

run_steps = loop.run_steps
def measured(*arguments, **named):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"CPU {usage.ru_utime + usage.ru_stime}", file=sys.stderr)
    return run_steps(*arguments, **named)
loop.run_steps = measured
sys.exit(cli.main(sys.argv[1:]))
"""


class Start(NamedTuple):
    """The seconds before the first step: of a core, of the clock, and of compiling (clock)."""

    cpu: float
    wall: float
    compiling: float


def start(encoding: str, data_dir: str, folder: Path, cache: Path | None) -> Start:
    """Train two steps in `folder`, with programs kept in `cache`, and return the times.

    Raises:
      RunFailed: The run failed.
    """
    arguments = [
        "--gin_file=configs/runs/quickstart.gin",
        f"--gin_file=configs/positions/{encoding}.gin",
        *(f"--gin.DATA_DIR={data_dir}", "--gin.TRAIN_STEPS=2", "--gin.AdamW.warmup_steps=1"),
        f"--workdir={folder}",
    ]
    cached = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    if cache is not None:
        cached = {"JAX_ENABLE_COMPILATION_CACHE": "1", "XDG_CACHE_HOME": str(cache)}
    others = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", _CPU_BEFORE_STEP, "pretrain", *arguments],
        env=others | cached,
        cwd=command.ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RunFailed(f"a run of {encoding} failed:\n{done.stderr[-2000:]}")
    cpu = next(line.split()[1] for line in done.stderr.splitlines() if line.startswith("CPU "))
    seconds = json.loads(next((folder / "goodput").iterdir()).read_text())["seconds"]
    return Start(float(cpu), seconds["starting"] + seconds["compiling"], seconds["compiling"])


def starts_of(encoding: str, data_dir: str, rounds: int) -> Iterator[tuple[str, Start]]:
    """Yield the kind of each start, and its times."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="fire_lm_start_up_") as name:
            folder = Path(name)
            for kind in ("off", "first", "second"):
                cache = None if kind == "off" else folder / "cache"
                yield kind, start(encoding, data_dir, folder / kind, cache)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Times from `fire-lm pretrain` to its first step.")
    parser.add_argument("data_dir", metavar="DATA_DIR")
    parser.add_argument("--encodings", default="nope,fire")
    parser.add_argument("--rounds", type=number, default=2)
    parsed = parser.parse_args(argv)
    rows = [["encoding", "kept programs", "CPU s", "wall s", "compiling, wall s"]]
    for encoding in parsed.encodings.split(","):
        kinds: dict[str, list[Start]] = {}
        for kind, times in starts_of(encoding, parsed.data_dir, parsed.rounds):
            kinds.setdefault(kind, []).append(times)
        for kind, all_times in kinds.items():
            least = (f"{min(times):.1f}" for times in zip(*all_times, strict=True))
            rows.append([encoding, kind, *least])
    print("\n".join(columns(rows)))


if __name__ == "__main__":
    sys.exit(command.refusing(main, sys.argv[1:]))
