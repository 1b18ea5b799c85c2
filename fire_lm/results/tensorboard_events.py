"""TensorBoard event files, written without TensorFlow, which takes seconds to import."""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from etils import epath

from fire_lm import storage
from fire_lm.storage.appended import Appended, Uploaded

_FILES = itertools.count()


class TensorBoardEvents:
    """A writer of a new event file, which has numbered parts of limited size in a bucket.

    TensorBoard's own writer imports TensorFlow and, in a bucket, uploads the entire file at every
    flush. TensorBoard reads the event files of a folder in the order of their names. The first
    event makes it drop steps after `resume_step` that it has already read.
    """

    def __init__(self, workdir: str, resume_step: int):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        heading = _record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        path = epath.Path(workdir) / (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
            f".{next(_FILES):04d}"
        )
        self._file: Appended
        if storage.in_bucket(workdir):
            self._waiting = b""
            self._file = Uploaded(
                lambda number: path.with_name(f"{path.name}.{number:04d}"), heading=heading
            )
        else:
            self._waiting = heading
            self._file = storage.append_to(path)
        start = SessionLog(status=SessionLog.START)
        self._waiting += _record(Event(step=resume_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write a scalar for each number. If the disk is full, it is kept for the next write."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if not isinstance(value, str)
        ]
        self._add(Event(step=step, wall_time=time.time(), summary=Summary(value=scalars)))

    def _add(self, event: Any) -> None:
        record, self._waiting = self._waiting + _record(event), b""
        self._file.append(record)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _record(event: Any) -> bytes:
    """Serialise an event as a TFRecord: its length, its content, and a CRC-32C of each."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(event.SerializeToString())
    return framed.getvalue()
