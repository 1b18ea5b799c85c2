"""Where the time of a run goes, over all its starts: from the run's own files, without a service.

Process 0 keeps one file a start, `goodput/<number>.json`, with the seconds of each stage so far. A
kill loses what came after its last writing, a few seconds at most; that counts as stopped.
"""

from __future__ import annotations

import json
import time
from typing import Any

from etils import epath

import fire_lm
from fire_lm.metrics import duration

START, COMPILE = "starting", "compiling"
DATA, DEVICES, SAVE = "waiting for data", "waiting for the devices", "saving"
STEPS = (DATA, DEVICES, SAVE)
LOST, STOPPED = "steps done again", "stopped"
_PERIOD = 2.0  # seconds between two writings


class Goodput:
    """The stages of this start. One is always under way: time has no gaps."""

    def __init__(self, workdir: str, quiet: bool):
        folder = epath.Path(workdir) / "goodput"
        self._file = None
        if not quiet:
            folder.mkdir(exist_ok=True)
            self._file = folder / f"{len(list(folder.glob('*.json'))):05d}.json"
        now = time.monotonic()
        self.stage = START
        self._since, self._written = fire_lm.STARTED, now
        self._seconds: dict[str, float] = {}
        self._at_save: dict[int, dict[str, float]] = {}
        # The clock on the wall is asked once: it may jump.
        self._began, self._resumed_from = time.time() - (now - fire_lm.STARTED), 0

    def resumed(self, step: int) -> None:
        self._resumed_from = step

    def enter(self, stage: str) -> None:
        now = time.monotonic()
        self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + now - self._since
        self.stage, self._since = stage, now
        if now - self._written > _PERIOD:
            self.write()

    def seconds(self, stage: str) -> float:
        """What has gone into a stage so far."""
        under_way = time.monotonic() - self._since if stage == self.stage else 0.0
        return self._seconds.get(stage, 0.0) + under_way

    def saved(self, step: int) -> None:
        """All up to here is kept if the next start resumes from `step`."""
        self.enter(self.stage)
        self._at_save[step] = dict(self._seconds)
        self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        if self._file is not None and len(self._seconds) > 1:  # more than to find nothing to do
            facts = {
                "began": self._began,
                "resumed_from": self._resumed_from,
                "seconds": self._seconds,
                "at_save": self._at_save,
            }
            temporary = self._file.with_suffix(".tmp")
            temporary.write_text(json.dumps(facts))
            temporary.replace(self._file)

    def close(self) -> None:
        self.enter(self.stage)
        self.write()


def account(workdir: str) -> dict[str, float]:
    """Seconds of a run by what they went into, of all its starts; together, its time on the wall.

    `LOST` are the steps after the last checkpoint of each start, which the next one did again, and
    `STOPPED` is the time between starts.
    """
    files = sorted((epath.Path(workdir) / "goodput").glob("*.json"))
    starts: list[dict[str, Any]] = [json.loads(file.read_text()) for file in files]
    total = dict.fromkeys((DEVICES, DATA, SAVE, START, COMPILE, LOST, STOPPED), 0.0)
    kept_to: int | None = None  # the step from which what follows has gone on; None: it is the end
    for index, start in reversed(list(enumerate(starts))):
        seconds = start["seconds"]
        kept = seconds
        if kept_to is not None:
            kept = start["at_save"].get(str(kept_to), {})
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
    """`account` for people."""
    total = account(workdir)
    wall = sum(total.values())
    lines = [
        f"  {stage:<24}{duration(seconds):>10}{seconds / wall:>8.1%}"
        for stage, seconds in total.items()
    ]
    return "\n".join([f"where the time went, {duration(wall)} in all:", *lines])
