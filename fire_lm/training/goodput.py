"""An account of a run's time over all its starts, from which its goodput is computed.

Process 0 keeps one file per start, `goodput/<number>.json` in the run directory, with the seconds
spent in each stage so far. It writes the file several times during start-up, at each save, at the
end and, except in a bucket, every few seconds between steps. If the process is killed, the time
since the last write counts as stopped.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import time
from typing import Any

import jax
from etils import epath

from fire_lm import storage
from fire_lm.console import duration
from fire_lm.errors import RunFailed
from fire_lm.hardware.host import usable_cores
from fire_lm.results.metrics_log import whole_lines

START, COMPILE = "starting", "compiling"
DATA, DEVICES, SAVE = "waiting for data", "waiting for the devices", "saving"
EVALUATION = "evaluating"
STEPS = (DATA, DEVICES, SAVE, EVALUATION)
LOST, STOPPED = "repeated steps", "stopped"
_STAGES = (*STEPS, START, COMPILE)
_PERIOD = 2.0  # seconds between two writes while steps run; a bucket gets one write per save


class Goodput:
    """An account of the time that this start of a run has spent in each stage.

    Exactly one stage is active at any time, so all time is accounted for.
    """

    def __init__(self, workdir: str, quiet: bool, since: float | None = None):
        """Begin the account at `since`, a value of `time.monotonic`, or now if `since` is None."""
        self._workdir, self._quiet = workdir, quiet
        self._file: epath.Path | None = None
        self._earlier: list[dict[str, Any]] = []
        self._in_bucket = storage.in_bucket(workdir)  # a bucket has no folders
        self._period = math.inf if self._in_bucket else _PERIOD
        now = time.monotonic()
        self.stage = START
        self._since, self._written = now if since is None else since, now
        self._seconds: dict[str, float] = {}
        self._at_save: dict[str, dict[str, float]] = {}
        # The last call to `fractions`, and the wait for data by then.
        self._last_fractions = (now, 0.0)
        # The wall clock is read only once, because it may jump.
        self._began, self._resumed_from = time.time() - (now - self._since), 0
        self.begun = False  # set once the first step of this start is complete
        self._counts = False  # a start of a run that is already complete does not count
        self._machine: dict[str, Any] = {}

    def resumed(self, step: int) -> None:
        """Begin to record this start, which has locked the run directory and resumes at `step`."""
        if self._file is None and not self._quiet:
            folder = epath.Path(self._workdir) / "goodput"
            storage.make_folder(folder)
            self._earlier = starts(self._workdir)
            taken = [int(path.stem) for path in _records(folder)]
            self._file = folder / f"{max(taken, default=-1) + 1:05d}.json"
        self._resumed_from, self._counts = step, True
        self._machine = machine()
        self.enter(self.stage)

    def enter(self, stage: str) -> None:
        now = time.monotonic()
        self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + now - self._since
        rare = stage not in STEPS or self.stage not in STEPS
        self.stage, self._since = stage, now
        if rare or now - self._written > self._period:
            self.write()

    def saved(self, step: int) -> None:
        """Record the time that is not lost if the next start resumes from `step`."""
        self.enter(self.stage)
        self._at_save[str(step)] = dict(self._seconds)
        self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        if self._file is None or not self._counts:
            return
        # A bucket has no folder that could vanish; for buckets, the lease detects a removed run
        # directory (`lock.only_writer`).
        if not self._in_bucket and not self._file.parent.is_dir():
            raise RunFailed(
                f"{self._workdir} was removed or renamed while the run was writing to it: stopped\n"
                "if it was renamed, run the same command with the new --workdir to resume"
            )
        with storage.tolerating("goodput"):
            storage.replace_text(self._file, json.dumps(self._facts()))

    def _facts(self) -> dict[str, Any]:
        return {
            "began": self._began,
            "resumed_from": self._resumed_from,
            "machine": self._machine,
            "seconds": self._seconds,
            "at_save": self._at_save,
        }

    def fractions(self) -> dict[str, float]:
        """Return two fractions of time for the log.

        `goodput` is the fraction of the run's time, over all its starts and the gaps between
        starts, that process 0 spent waiting for the devices in steps that were not repeated later.
        `data_wait` is the fraction of the time since the last call that it spent waiting for data.
        """
        self.enter(self.stage)
        total, waited = _account([*self._earlier, self._facts()]), self._seconds.get(DATA, 0.0)
        since, before = self._last_fractions
        self._last_fractions = self._since, waited
        return {
            "goodput": total[DEVICES] / max(sum(total.values()), 1e-9),
            "data_wait": (waited - before) / max(self._since - since, 1e-9),
        }

    def __enter__(self) -> Goodput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the account, or remove it if an error ended the start before its first step."""
        if kind is None or self.begun or self._file is None:
            self.close()
            return
        self._counts = False
        with storage.tolerating("goodput"):
            storage.remove(self._file)
        if not self._in_bucket:
            with contextlib.suppress(OSError):  # it has the records of other starts
                os.rmdir(self._file.parent)

    def close(self) -> None:
        self.enter(self.stage)
        self.write()


def machine() -> dict[str, Any]:
    """Return the devices of this job and the versions of its software.

    On CPUs, each core that the process may use counts as a device.
    """
    kind, devices = jax.devices()[0].device_kind, jax.device_count()
    if jax.devices()[0].platform == "cpu":
        kind = f"{platform.machine()} CPU core"
        devices = len(usable_cores()) or os.cpu_count() or 1
    return {
        "kind": kind,
        "devices": devices,
        "processes": jax.process_count(),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def account(workdir: str) -> dict[str, float]:
    """Return the seconds that a run has spent in each stage over all its starts.

    The seconds add up to the run's wall time. `LOST` is the time spent on steps that a later start
    repeated, and `STOPPED` is the time between starts.
    """
    return _account(starts(workdir))


def starts(workdir: str) -> list[dict[str, Any]]:
    files = _records(epath.Path(workdir) / "goodput")
    contents = map(storage.read_bytes, files)
    return [facts for content in contents for facts, _ in whole_lines(content, _of_a_start)]


def _records(folder: epath.Path) -> list[epath.Path]:
    """Return the files that record starts, in the order of the starts."""
    files = storage.children(folder)
    return sorted(path for path in files if re.fullmatch(r"[0-9]{5,9}\.json", path.name))


def _of_a_start(facts: dict[str, Any]) -> bool:
    """Return whether a record, which may be damaged, has all entries that `_account` needs."""
    at_save = facts.get("at_save")
    return (
        _is_time(facts.get("began"))
        and type(facts.get("resumed_from")) is int
        and _are_seconds(facts.get("seconds"))
        and isinstance(at_save, dict)
        and all(map(_are_seconds, at_save.values()))
    )


def _are_seconds(value: Any) -> bool:
    return isinstance(value, dict) and all(
        stage in _STAGES and _is_time(spent) for stage, spent in value.items()
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e15


def _account(starts: list[dict[str, Any]]) -> dict[str, float]:
    evaluating = (EVALUATION,) * any(EVALUATION in start["seconds"] for start in starts)
    stages = (DEVICES, DATA, SAVE, *evaluating, START, COMPILE, LOST, STOPPED)
    total = dict.fromkeys(stages, 0.0)
    # The earliest step from which a later start resumed; None for the last start.
    kept_to: int | None = None
    for index, start in reversed(list(enumerate(starts))):
        seconds = start["seconds"]
        kept = seconds
        if kept_to is not None:
            kept = start["at_save"].get(str(kept_to), {})
            if kept and all(seconds.get(stage) == kept.get(stage) for stage in (DATA, DEVICES)):
                kept = seconds  # no step followed the save, so none was repeated
            end = start["began"] + sum(seconds.values())
            total[STOPPED] += max(0.0, starts[index + 1]["began"] - end)
        for stage, spent in seconds.items():
            used = kept.get(stage, 0.0) if stage in STEPS else spent
            total[stage] += used
            total[LOST] += spent - used
        resumed_from = start["resumed_from"]
        kept_to = resumed_from if kept_to is None else min(kept_to, resumed_from)
    return total


def table(workdir: str) -> str:
    """Format the result of `account` as a table."""
    total = account(workdir)
    wall = sum(total.values())
    lines = [
        f"  {stage:<24}{duration(seconds):>10}{seconds / max(wall, 1e-9):>8.1%}"
        for stage, seconds in total.items()
    ]
    return "\n".join([f"time by stage, {duration(wall)} in total:", *lines])
