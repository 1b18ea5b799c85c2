"""The logs of a run in training: `metrics.jsonl` and TensorBoard events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from etils import epath

from fire_lm import storage
from fire_lm.results.tensorboard_events import EventsInBucket, EventsOnDisk


def of_a_step(facts: dict[str, Any]) -> bool:
    """Return whether a line of a log belongs to a step."""
    return type(facts.get("step")) is int


def whole_lines(
    content: bytes | None, ours: Callable[[dict[str, Any]], bool] = of_a_step
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the (object, line) of each line of a JSON lines file that is `ours`.

    Lines that are incomplete after a kill or a crash, damaged on the disk, or added by others are
    skipped.
    """
    for line in (content or b"").decode(errors="replace").splitlines():
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and ours(facts):
                yield facts, f"{line}\n"


def logged_steps(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """Return the lines of a run's `metrics.jsonl`, including all parts that a bucket may hold."""
    content = b"".join(storage.read_parts(epath.Path(workdir) / "metrics.jsonl"))
    return [facts for facts, _ in whole_lines(content)]


class MetricsLog:
    """The `metrics.jsonl` and TensorBoard events of a run; lines after `resume_step` are dropped.

    A killed run may have logged steps after its last checkpoint. These are computed again, bit for
    bit, so the file is truncated to the checkpoint and holds every step once. In a bucket a line
    arrives within half a minute (`storage.appended`); no step waits for it.
    """

    def __init__(self, workdir: str | epath.Path, resume_step: int):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._workdir, path = str(workdir), epath.Path(workdir) / "metrics.jsonl"

        def up_to_resume_step(content: bytes) -> bytes:
            lines = [line for facts, line in whole_lines(content) if facts["step"] <= resume_step]
            return "".join(lines).encode()

        self._file = storage.append_to(path, up_to_resume_step)
        self._events: EventsOnDisk | EventsInBucket | None = None
        # This makes TensorBoard drop the later steps that it has read.
        start = SessionLog(status=SessionLog.START)
        self._add(Event(step=resume_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write a line to the file, and a scalar for each number to TensorBoard.

        A full disk is reported but does not stop the run: lines wait for the next write, while
        TensorBoard's scalars are lost.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if not isinstance(value, str)
        ]
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=scalars))
        line = json.dumps({"step": step, **values}) + "\n"
        with storage.tolerating("metrics.jsonl"):
            self._file.append(line.encode())
            self._add(event)

    def flush(self) -> None:
        """Request the upload of everything that a bucket lacks, without waiting for it."""
        self._file.flush()
        if self._events is not None:
            self._events.flush()

    def _add(self, event: Any) -> None:
        if self._events is None:
            kind = EventsInBucket if storage.in_bucket(self._workdir) else EventsOnDisk
            self._events = kind(self._workdir)
        try:
            self._events.add_event(event)
        except Exception:
            self._events = None  # this file accepts no more events: the next one gets a new file
            raise

    def close(self) -> None:
        with storage.tolerating("metrics.jsonl"):
            self._file.close()
        if self._events is not None:
            with storage.tolerating("TensorBoard events"):
                self._events.close()
