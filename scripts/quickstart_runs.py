"""The runs of scripts/quickstart, in up to three processes that each handle some encodings.

    python scripts/quickstart_runs.py --workdir DIR --data_dir DATA --steps N ENCODING ...

Each process trains and scores some of the encodings one after another, so that modules are imported
only once. On two cores, two processes with one core each are faster than one process with two
cores. The output of process N goes to DIR/log_N.txt, and this program shows the progress of all
processes. At the end, it writes the combined table and figure, and the report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import fire_lm
from fire_lm import cli
from fire_lm.console import Progress
from fire_lm.errors import FireLMError
from fire_lm.hardware.host import ANNOUNCEMENTS, shares_of_cores, starting_on
from fire_lm.runs.saved import read_saved
from fire_lm.training import AdamW

# This is less than the 131,072 tokens of configs/runs/quickstart.gin, but enough for a first
# impression.
SCORED_TOKENS = 65_536
_WARMUP = 50  # the number of steps in configs/runs/quickstart.gin; short runs use fewer
_MOST_AT_ONCE = 3  # the maximum number of processes, each of which needs 1.5 GB of memory
_POLL_SECONDS = 1.0
_QUIET_SECONDS = 5.0
# The time before the first step (mostly compiling) and that of scoring, as shares of the whole
# time of a run with the default number of steps, for the ETA: about what two cores need.
_STARTING, _SCORING = 0.3, 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description="The runs of scripts/quickstart.")
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--worker", type=int, help="train and score in this process")
    parser.add_argument("--warmup", type=int, help="warm-up steps, for a worker")
    parser.add_argument("encodings", nargs="+")
    arguments = parser.parse_args()
    arguments.encodings = list(dict.fromkeys(arguments.encodings))
    if arguments.worker is not None:
        return work(arguments)
    arguments.warmup = warmup_steps(arguments.workdir, arguments.steps)
    code = start_workers(arguments)
    if code:
        return code
    print(f"\nAll runs are trained and scored: table, figure and report in {arguments.workdir}")
    return cli.main(["sweep", arguments.workdir]) or cli.main(["report", arguments.workdir])


def work(arguments: argparse.Namespace) -> int:
    """Train and score the encodings one by one; return the first non-zero exit code, or else 0."""
    for encoding in arguments.encodings:
        run = f"{arguments.workdir}/{encoding}"
        # Without this, the time of earlier runs would count as start-up time.
        fire_lm.STARTED = time.monotonic()
        code = cli.main(
            [
                "pretrain",
                "--gin_file=configs/runs/quickstart.gin",
                f"--gin_file=configs/positions/{encoding}.gin",
                f"--gin.DATA_DIR={arguments.data_dir}",
                f"--gin.TRAIN_STEPS={arguments.steps}",
                f"--gin.AdamW.warmup_steps={arguments.warmup}",
                f"--gin.length_sweep.tokens={SCORED_TOKENS}",
                f"--workdir={run}",
            ]
        ) or cli.main(["sweep", run])
        if code:
            return code
    return 0


def warmup_steps(workdir: str, steps: int) -> int:
    """Return the number of warm-up steps of all runs: that of the runs which exist, if any do."""
    for run in sorted(Path(workdir).glob("*/")):
        with contextlib.suppress(FireLMError):  # the command that opens the run says what is wrong
            saved = read_saved(str(run))
            optimizer = None if saved is None else saved.experiment.train.optimizer
            if isinstance(optimizer, AdamW):
                return optimizer.warmup_steps
    return min(_WARMUP, steps // 4)


def start_workers(arguments: argparse.Namespace) -> int:
    """Run the worker processes; return 130 after Ctrl-C, or the first non-zero exit code, or 0."""
    count = min(len(shares_of_cores(1)[0]), _MOST_AT_ONCE, len(arguments.encodings))
    Path(arguments.workdir).mkdir(parents=True, exist_ok=True)
    logs = [Path(arguments.workdir) / f"log_{number}.txt" for number in range(count)]
    print(f"{count} at a time, with their output in {', '.join(map(str, logs))}", flush=True)
    workers = []
    for number, (log, cores) in enumerate(zip(logs, shares_of_cores(count), strict=True)):
        command = [sys.executable, __file__, "--worker", str(number)]
        command += ["--workdir", arguments.workdir, "--data_dir", arguments.data_dir]
        command += ["--steps", str(arguments.steps), "--warmup", str(arguments.warmup)]
        command += arguments.encodings[number::count]
        with starting_on(cores):
            worker = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT)
        workers.append(worker)
    # The terminal sends Ctrl-C to the workers as well, which then save; the signals that announce
    # an end must be forwarded.
    for announced in (signal.SIGTERM, *ANNOUNCEMENTS):
        if signal.getsignal(announced) is signal.SIG_DFL:
            signal.signal(announced, lambda *_: [worker.terminate() for worker in workers])
    try:
        failed = wait(workers, arguments)
    except KeyboardInterrupt:
        codes = [worker.wait() for worker in workers]
        print(f"\nstopped; the processes ended with exit codes {codes}")
        return 130
    if failed is None:
        return 0
    last = logs[failed].read_text(errors="replace").splitlines()[-15:]
    print("\n".join([f"\nThe end of {logs[failed]}:", *last]), file=sys.stderr)
    return workers[failed].returncode


def wait(workers: list[subprocess.Popen], arguments: argparse.Namespace) -> int | None:
    """Show the progress of all runs until the workers have ended; if one fails, end the others.

    Returns:
      The number of the worker that failed first, or None.
    """
    total = arguments.steps * len(arguments.encodings)
    began = time.monotonic()
    progress = Progress(total)
    shown = began
    failed = None
    while any(worker.poll() is None for worker in workers):
        if failed is None:
            failed = first_failed(workers)
        if failed is not None:
            for worker in workers:
                worker.terminate()
        time.sleep(_POLL_SECONDS)
        done = steps_done(arguments)
        if time.monotonic() - shown >= _QUIET_SECONDS:
            shown = time.monotonic()
            running = [name for name, step in done.items() if 0 < step < arguments.steps]
            text = f"training {', '.join(running)}" if running else "starting, compiling or scoring"
            progress.show(min(sum(done.values()), total - 1), text, share_done(arguments, done))
    if failed is None:
        failed = first_failed(workers)
    if failed is None:
        progress.show(total, "trained and scored")
    progress.close()
    return failed


def first_failed(workers: list[subprocess.Popen]) -> int | None:
    """Return the number of the first worker that has ended with an error, or None."""
    return next((number for number, worker in enumerate(workers) if worker.poll()), None)


def share_done(arguments: argparse.Namespace, steps: dict[str, int]) -> float:
    """Return the share of the work that is done, with starting and scoring, which take no steps."""
    shares = []
    for encoding, step in steps.items():
        run = Path(arguments.workdir) / encoding
        started = (run / "metrics.jsonl").exists()
        scored = step == arguments.steps and (run / "length_sweep.csv").exists()
        training = (1 - _STARTING - _SCORING) * step / arguments.steps
        shares.append(_STARTING * started + training + _SCORING * scored)
    return sum(shares) / len(shares)


def steps_done(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the number of finished steps of each encoding, read from metrics.jsonl."""
    found = {}
    for encoding in arguments.encodings:
        path = Path(arguments.workdir) / encoding / "metrics.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        try:
            # There is a line after the first step, which has no rate, and after every 100 steps.
            step = int(json.loads(lines[-1])["step"]) if lines else 0
            found[encoding] = min(arguments.steps, step) if step > 1 else 0
        except (ValueError, KeyError, TypeError):  # The last line is still being written.
            found[encoding] = arguments.steps if len(lines) > 5 else 0
    return found


if __name__ == "__main__":
    sys.exit(main())
