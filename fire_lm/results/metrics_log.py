"""The logs of a training run: `metrics.jsonl` and TensorBoard events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from etils import epath

from fire_lm import storage
from fire_lm.results.tensorboard_events import TensorBoardEvents


def of_a_step(facts: dict[str, Any]) -> bool:
    """Return whether the parsed line of a log belongs to a training step."""
    return type(facts.get("step")) is int


def whole_lines(
    content: bytes | None, ours: Callable[[dict[str, Any]], bool] = of_a_step
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the parsed object and the text of each JSON line for which `ours` returns True.

    Lines that are incomplete because of a kill or a crash, damaged on the disk, or added by other
    programs are skipped.
    """
    for line in (content or b"").decode(errors="replace").split("\n"):
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and ours(facts):
                yield facts, f"{line}\n"


def logged_steps(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """Return the parsed lines of a run's `metrics.jsonl`, including all parts of the file."""
    content = b"".join(storage.read_parts(epath.Path(workdir) / "metrics.jsonl"))
    return [facts for facts, _ in whole_lines(content)]


class MetricsLog:
    """A writer for the `metrics.jsonl` and the TensorBoard events of a run.

    Existing lines of steps after `resume_step` are removed. A killed run may have logged steps
    after its last checkpoint. The resumed run computes these steps again, bit for bit, so the file
    is truncated at the checkpoint and contains every step only once. In a bucket, a line is
    uploaded within half a minute (see `storage.appended`), and no step waits for the upload.
    """

    def __init__(self, workdir: str | epath.Path, resume_step: int):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._workdir, path = str(workdir), epath.Path(workdir) / "metrics.jsonl"

        def up_to_resume_step(content: bytes) -> bytes:
            lines = [line for facts, line in whole_lines(content) if facts["step"] <= resume_step]
            return "".join(lines).encode()

        self._file = storage.append_to(path, up_to_resume_step)
        self._events: TensorBoardEvents | None = None
        # This event makes TensorBoard drop later steps that it has already read.
        start = SessionLog(status=SessionLog.START)
        with storage.tolerating("TensorBoard events"):
            self._events = TensorBoardEvents(self._workdir)
            self._events.add_event(Event(step=resume_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write a line to `metrics.jsonl`, and a TensorBoard scalar for each number.

        A full disk is reported but does not stop the run. Pending lines and scalars are kept for
        the next write.
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
        if self._events is not None:
            with storage.tolerating("TensorBoard events"):
                self._events.add_event(event)

    def flush(self) -> None:
        """Request the upload of all pending data to a bucket, without waiting for the upload."""
        self._file.flush()
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        with storage.tolerating("metrics.jsonl"):
            self._file.close()
        if self._events is not None:
            with storage.tolerating("TensorBoard events"):
                self._events.close()
