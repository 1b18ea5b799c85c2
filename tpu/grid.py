"""A grid of experiments, in which each combination of settings is an arm with its own job.

The settings are encodings, seeds, and gin bindings or files.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

from fire_lm.console import columns, duration
from fire_lm.errors import FireLMError, Preempted, RunFailed, UserError, nearest
from tpu.job import LONGEST_NAME, Job, check_name

POSITIONS = Path(__file__).parent.parent / "configs" / "positions"
FILES = "gin_file"  # A varied setting with this name selects gin files instead of a binding.


@dataclasses.dataclass(frozen=True)
class Arm:
    """One experiment of a grid.

    Attributes:
      name: The name of the run and of its folder within the grid's folder.
      flags: The gin flags that this arm adds to the flags that all arms share.
    """

    name: str
    flags: tuple[str, ...]


def arms(
    positions: Sequence[str], seeds: Sequence[int], varied: Mapping[str, Sequence[str]]
) -> list[Arm]:
    """Return an arm for every combination of encodings, seeds and varied values.

    Args:
      positions: The names of files in configs/positions.
      varied: The values of each varied binding. A value of `gin_file` is a list of files separated
        by commas; an empty list gives an arm without such files.

    Raises:
      UserError: An encoding does not exist or two arms would have the same name.
    """
    known = sorted(path.stem for path in POSITIONS.glob("*.gin"))
    for position in positions:
        if position not in known:
            near = nearest(position, known)
            hint = f"did you mean {near}?" if near else f"known encodings: {', '.join(known)}"
            raise UserError(f"--positions: there is no configs/positions/{position}.gin; {hint}")
    if "SEED" in varied:
        raise UserError("--vary.SEED is not the seed in the names of arms: use --seeds instead")
    for name, given in varied.items():
        _check_values_differ(name, given)
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
        raise UserError(f"two arms of the grid would have the name {twice[0]}: choose other values")
    return found


def _check_values_differ(name: str, given: Sequence[str]) -> None:
    """Raise UserError for two ways to write one number, which would give two equal arms."""
    for one, other in itertools.combinations(given, 2):
        with contextlib.suppress(ValueError):  # for what is not a number
            if float(one) == float(other):
                raise UserError(f"--vary.{name}: {one} and {other} are the same value")


def _flags(name: str, value: str) -> list[str]:
    if name == FILES:
        return [f"--gin_file={path}" for path in value.split(",") if path]
    return [f"--gin.{name}={value}"]


def _suffix(name: str, value: str) -> str:
    """Return a value's part of the arm's name, such as log-n-training for log_n/training.gin."""
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
    bindings: str = "",
) -> Job:
    """Return a job that trains an arm and then scores every length.

    Args:
      flags: The flags that all arms share.
      fire_lm: The command, as a list of words, that starts `fire-lm` where the job runs.
      scoring: The verb that scores the run, followed by its flags.
    """
    workdir = f"{folder}/{arm.name}"
    train = (*fire_lm, "pretrain", f"--workdir={workdir}", *flags, *arm.flags)
    return Job(
        name=short_name(f"{grid}-{arm.name}"),
        commands=(train, (*fire_lm, *scoring, workdir)),
        folder=workdir,
        bindings=bindings,
    )


def short_name(name: str) -> str:
    """Return a valid name for TPUs; shorten a long name and add a hash that makes it unique."""
    if len(name) <= LONGEST_NAME:
        return check_name(name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return check_name(f"{name[: LONGEST_NAME - 9]}-{digest}")


class Table:
    """A table of the arms and their states, which prints every change of a state."""

    def __init__(
        self, arms: Sequence[Arm], progress: Callable[[Arm], str], phase: Callable[[Arm], str]
    ):
        self._states = {arm: "waiting" for arm in arms}
        self._progress, self._phase = progress, phase
        self._lock = threading.Lock()
        self._began: dict[Arm, float] = {}
        self._seconds: list[float] = []  # of the arms that were run by this command
        self._shown = ""

    def set(self, arm: Arm, state: str, why: str = "") -> None:
        """Change and print the state of an arm."""
        with self._lock:
            self._states[arm] = state
            began, now = self._began.pop(arm, None), time.monotonic()
            if state == "running":
                self._began[arm] = now
            elif state == "done" and began is not None:
                self._seconds.append(now - began)
                why = self._eta()
            over = [s for s in self._states.values() if s not in ("waiting", "running")]
            place = f"{time.strftime('%H:%M')} [{len(over)}/{len(self._states)}]"
            print(f"{place} {arm.name}: {state} {why}".rstrip(), flush=True)

    def _eta(self) -> str:
        """Return when the grid will be done if its other arms take as long as those done so far."""
        states = list(self._states.values())
        left, running = states.count("waiting"), states.count("running")
        if not self._seconds or not left + running:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        elapsed = sum(time.monotonic() - began for began in self._began.values())
        # The arm that has just finished has freed a place, which a waiting arm takes.
        at_once = running + (left > 0)
        rest = max(0.0, (left + running) * mean - elapsed) / at_once
        return f"after {duration(self._seconds[-1])}; ETA of the grid {duration(rest)}"

    def show_running(self) -> None:
        """Print a line with the progress of all running arms, unless it is the line before."""
        with self._lock:
            arms = [arm for arm, state in self._states.items() if state == "running"]
        line = "; ".join(f"{arm.name}: {self._phase(arm) or 'starting'}" for arm in arms)
        if line and line != self._shown:
            self._shown = line
            print(f"{time.strftime('%H:%M')} {line}", flush=True)

    def __str__(self) -> str:
        rows = [[arm.name, state, self._progress(arm)] for arm, state in self._states.items()]
        return "\n".join(columns([["arm", "state", "newest step"], *rows]))


def run(
    arms: Sequence[Arm],
    run_arm: Callable[[Arm], None],
    *,
    is_done: Callable[[Arm], bool],
    progress: Callable[[Arm], str],
    at_once: int,
    stop: Callable[[], None],
    log: Callable[[Arm], str] = lambda arm: "",
    phase: Callable[[Arm], str] | None = None,
    every: float | None = None,
) -> None:
    """Run all arms that are not done, `at_once` at a time; a failed arm does not stop other arms.

    Args:
      run_arm: Runs an arm to its end, and raises an error if the arm fails.
      is_done: Returns whether an arm is already done.
      progress: Returns the newest step of an arm in a few words, for the table at the end.
      stop: Makes the running arms end soon, and prevents waiting arms from starting.
      log: Returns the path of an arm's output, which is printed when the arm starts; empty if
        the path need not be printed.
      phase: Returns what a running arm does in a few words; by default, its newest step.
      every: The number of seconds between two lines about the progress of the running arms; None
        prints no such lines.

    Raises:
      RunFailed: Some arms failed.
      Preempted: The grid was stopped.
    """
    table = Table(arms, progress, phase or progress)
    failures: dict[str, FireLMError] = {}

    def one(arm: Arm) -> None:
        try:
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

    done = [arm for arm in arms if is_done(arm)]
    for arm in done:
        table.set(arm, "done")
    interrupted = False
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(one, arm) for arm in arms if arm not in done]
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
        errors = "\n".join(f"{name}: {error}" for name, error in failures.items())
        raise RunFailed(f"{len(failures)} of {len(arms)} arms failed\n{errors}")
