"""A sweep of experiments: encodings x seeds x gin bindings or files, one job for each arm."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

from fire_lm.errors import FireLMError, Preempted, RunFailed, UserError, nearest
from tpu.job import LONGEST_NAME, Job, check_name

POSITIONS = Path(__file__).parent.parent / "configs" / "positions"
FILES = "gin_file"  # among the varied names: gin files, not a binding


@dataclasses.dataclass(frozen=True)
class Arm:
    """Attributes:
    name: of its run, a folder of the grid's.
    flags: gin's, besides the flags that all arms share.
    """

    name: str
    flags: tuple[str, ...]


def arms(
    positions: Sequence[str], seeds: Sequence[int], varied: Mapping[str, Sequence[str]]
) -> list[Arm]:
    """Every combination of encodings (files of configs/positions), seeds and varied values.

    Args:
      varied: the values of each binding; those of `gin_file` are lists of files, separated by
        commas, and an empty list is an arm without them.

    Raises:
      UserError: an encoding that there is not, or two arms of one name.
    """
    known = sorted(path.stem for path in POSITIONS.glob("*.gin"))
    for position in positions:
        if position not in known:
            near = nearest(position, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"--positions: there is no configs/positions/{position}.gin; {hint}")
    found = []
    for position, seed, values in itertools.product(
        positions, seeds, itertools.product(*varied.values())
    ):
        chosen = list(zip(varied, values, strict=True))
        suffixes = [suffix for name, value in chosen if (suffix := _suffix(name, value))]
        found.append(
            Arm(
                name="-".join([_slug(position), f"seed{seed}", *suffixes]),
                flags=(
                    f"--gin_file=configs/positions/{position}.gin",
                    f"--gin.SEED={seed}",
                    *(flag for name, value in chosen for flag in _flags(name, value)),
                ),
            )
        )
    names = [arm.name for arm in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two arms of the grid would have the name {twice[0]}: vary it otherwise")
    return found


def _flags(name: str, value: str) -> list[str]:
    if name == FILES:
        return [f"--gin_file={path}" for path in value.split(",") if path]
    return [f"--gin.{name}={value}"]


def _suffix(name: str, value: str) -> str:
    """The part of an arm's name for a value; configs/log_n/training.gin is log-n-training."""
    if name == FILES:
        files = [PurePath(path).with_suffix("").parts[-2:] for path in value.split(",") if path]
        return "-".join(_slug(part) for parts in files for part in parts)
    return _slug(f"{name}={value}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def arm_job(
    arm: Arm,
    grid: str,
    folder: str,
    flags: Sequence[str],
    fire_lm: Sequence[str],
    scoring: Sequence[str],
) -> Job:
    """Train, then score every length.

    Args:
      fire_lm: the command of that name where the job runs.
      scoring: its verb that scores the run, and flags.
    """
    workdir = f"{folder}/{arm.name}"
    train = (*fire_lm, "pretrain", f"--workdir={workdir}", *flags, *arm.flags)
    return Job(
        name=short_name(f"{grid}-{arm.name}"),
        commands=(train, (*fire_lm, *scoring, workdir)),
        folder=workdir,
    )


def short_name(name: str) -> str:
    """A name for TPUs; of a long one the beginning, and what tells it from others."""
    if len(name) <= LONGEST_NAME:
        return check_name(name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return check_name(f"{name[: LONGEST_NAME - 9]}-{digest}")


class Table:
    """The arms and their state, printed whenever that changes."""

    def __init__(self, arms: Sequence[Arm], progress: Callable[[Arm], str]):
        self._states = {arm: "waiting" for arm in arms}
        self._progress = progress
        self._lock = threading.Lock()

    def set(self, arm: Arm, state: str, why: str = "") -> None:
        with self._lock:
            self._states[arm] = state
            over = [s for s in self._states.values() if s not in ("waiting", "running")]
            now = f"{time.strftime('%H:%M')} [{len(over)}/{len(self._states)}]"
            print(f"{now} {arm.name}: {state} {why}".rstrip(), flush=True)

    def show_running(self) -> None:
        """Print the progress of all running arms in one line."""
        with self._lock:
            arms = [arm for arm, state in self._states.items() if state == "running"]
        told = "; ".join(f"{arm.name}: {self._progress(arm) or 'starting'}" for arm in arms)
        if told:
            print(f"{time.strftime('%H:%M')} {told}", flush=True)

    def __str__(self) -> str:
        width = max(len(arm.name) for arm in self._states)
        rows = [
            f"{arm.name:{width}}  {state:8}  {self._progress(arm)}".rstrip()
            for arm, state in self._states.items()
        ]
        return "\n".join([f"{'arm':{width}}  state     newest step", *rows])


def run(
    arms: Sequence[Arm],
    run_arm: Callable[[Arm], None],
    *,
    is_done: Callable[[Arm], bool],
    progress: Callable[[Arm], str],
    at_once: int,
    stop: Callable[[], None],
    log: Callable[[Arm], str] = lambda arm: "",
    every: float | None = None,
) -> None:
    """Run what is not done, `at_once` at a time; an arm that fails leaves the others going.

    Args:
      run_arm: returns when the arm is done, raises when it failed.
      stop: ends the running arms soon, and keeps the waiting ones from starting.
      log: the file of an arm's output, reported when the arm starts; empty if reported elsewhere.
      every: seconds between two lines of how far the running arms are; None for no such lines.

    Raises:
      RunFailed: some arms failed. Preempted: it was stopped.
    """
    table = Table(arms, progress)
    failures: dict[str, FireLMError] = {}

    def one(arm: Arm) -> None:
        try:
            if not is_done(arm):
                table.set(arm, "running", f"(output: {log(arm)})" if log(arm) else "")
                run_arm(arm)
        except Preempted:
            table.set(arm, "stopped")
            raise
        except FireLMError as error:
            failures[arm.name] = error
            table.set(arm, "FAILED", str(error).partition("\n")[0])
        else:
            table.set(arm, "done")

    interrupted = False
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(one, arm) for arm in arms]
        try:
            while concurrent.futures.wait(futures, every).not_done:
                table.show_running()
        except KeyboardInterrupt:
            interrupted = True
            for future in futures:
                future.cancel()
            stop()
    print(f"\n{table}\n", flush=True)
    if interrupted:
        raise KeyboardInterrupt
    stopped = [error for future in futures if (error := future.exception()) is not None]
    if stopped:
        raise stopped[0]
    if failures:
        told = "\n".join(f"{name}: {error}" for name, error in failures.items())
        raise RunFailed(f"{len(failures)} of {len(arms)} arms failed\n{told}")
