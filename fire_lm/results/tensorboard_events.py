"""Writers of TensorBoard event files on a disk and, as numbered parts, in a bucket."""

from __future__ import annotations

import io
import os
import socket
import time
from typing import Any

from etils import epath

from fire_lm.storage.appended import Uploaded


class EventsOnDisk:
    """A thin wrapper around TensorBoard's writer, which runs its own thread."""

    def __init__(self, workdir: str):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(workdir)

    def add_event(self, event: Any) -> None:
        self._writer.add_event(event)

    def flush(self) -> None:
        pass  # the writer flushes every two minutes, so a kill loses at most two minutes

    def close(self) -> None:
        self._writer.close()


class EventsInBucket:
    """A writer that appends events to a sequence of objects of limited size.

    TensorBoard's own writer would upload the entire file at every flush. TensorBoard reads the
    event files of a folder in the order of their names.
    """

    def __init__(self, workdir: str):
        folder = epath.Path(workdir)
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"

        from tensorboard.compat.proto.event_pb2 import Event

        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        heading = _record(version)
        self._file = Uploaded(lambda number: folder / f"{stem}.{number:04d}", heading=heading)

    def add_event(self, event: Any) -> None:
        self._file.append(_record(event))

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
