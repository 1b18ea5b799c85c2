"""Files that grow line by line during a run.

On a disk, a line is visible immediately. In a bucket, an object cannot grow, so a separate thread
collects lines for half a minute and uploads them. The step that logs a line never waits for an
upload. Each upload rewrites the newest object until its size reaches 256 KiB. Later lines go to a
new object, so the parts of a file are called `metrics.jsonl`, `metrics_1.jsonl`, `metrics_2.jsonl`
and so on. A process that is killed loses the lines of the last half minute. Parts can be read on
disks as well as in buckets, because users copy runs from buckets to disks.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.storage import objects
from fire_lm.storage.files import in_bucket, read_bytes, remove, replace_text

WINDOW_SECONDS = 30.0  # a process that is killed loses the lines of at most this period
PART_BYTES = 2**18
_LAST_TRIES = 3  # attempts to upload the remaining lines when the file is closed


class Appended(Protocol):
    """A file that is open for appending."""

    def append(self, content: bytes) -> None: ...

    def flush(self) -> None:
        """Request an early upload and return without waiting for it."""

    def close(self) -> None: ...


def part(path: str | epath.Path, number: int) -> epath.Path:
    """Return the path of a part, such as `metrics.jsonl` for 0 or `metrics_1.jsonl` for 1."""
    path = epath.Path(path)
    return path.with_name(f"{path.stem}_{number}{path.suffix}") if number else path


def read_parts(path: str | epath.Path) -> list[bytes]:
    """Return the content of each part, or an empty list if the file does not exist.

    Raises:
      RunFailed, OSError: A part cannot be read.
    """
    contents = (read_bytes(part(path, number)) for number in itertools.count())
    return list(itertools.takewhile(lambda content: content is not None, contents))  # type: ignore[arg-type]


def append_to(
    path: str | epath.Path,
    keep: Callable[[bytes], bytes] = lambda content: content,
    *,
    in_parts: bool = True,
    required: bool = False,
) -> Appended:
    """Open the newest part of a file for appending, and create the file if it does not exist.

    In a bucket, the newest part is always rewritten. An earlier writer whose run directory has been
    taken over then has an outdated generation and can no longer write.

    Args:
      keep: A function that receives the content of each part and returns the content to keep.
      in_parts: Whether a large file in a bucket continues in a new part.
      required: Whether closing the file raises RunFailed if lines could not be uploaded. Otherwise,
        their loss is reported.

    Raises:
      RunFailed, OSError: The file cannot be read or written.
    """
    if in_bucket(path):
        while (opened := _opened(path, keep, in_parts, required)) is None:
            pass  # another process wrote in the meantime
        return opened
    parts = read_parts(path)
    kept = [keep(content) for content in parts]
    newest = _newest(kept)
    # Parts are rewritten from last to first, so that killing the process duplicates no line.
    for number, content in reversed(list(enumerate(parts))):
        if number > newest:
            remove(part(path, number))
        elif kept[number] != content:
            replace_text(part(path, number), kept[number].decode(errors="replace"))
    return _OnDisk(part(path, newest))


def _newest(parts: Sequence[bytes]) -> int:
    """Return the number of the last part that has content, or 0."""
    return max((number for number, content in enumerate(parts) if content), default=0)


def _opened(
    path: str | epath.Path, keep: Callable[[bytes], bytes], in_parts: bool, required: bool
) -> Uploaded | None:
    """Open a file in a bucket, or return None if another writer has changed it meanwhile."""
    parts = [objects.read(path)]
    while parts[-1].content is not None and in_parts:
        parts.append(objects.read(part(path, len(parts))))
    kept = [b"" if stored.content is None else keep(stored.content) for stored in parts]
    newest = _newest(kept)
    if in_parts and len(kept[newest]) >= PART_BYTES:
        newest += 1
    generation: bytes | None = None
    for number, (content, before) in reversed(list(enumerate(parts))):
        if number > newest:
            if content is not None and not objects.remove(part(path, number), before):
                return None
        elif number == newest or kept[number] != content:
            written = objects.write(part(path, number), kept[number], before)
            if written is None:
                return None
            if number == newest:
                generation = written
    return Uploaded(
        *(lambda number: part(path, number), newest, kept[newest], generation),
        in_parts=in_parts,
        required=required,
    )


class _OnDisk:
    """A file on a disk that is open for appending.

    Content that a full disk refuses is kept, in order, for the next call of `append` or `close`.
    """

    def __init__(self, path: epath.Path):
        self._file = Path(path).open("ab", buffering=0)
        self._waiting = b""

    def append(self, content: bytes) -> None:
        self._waiting += content
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        try:
            self.append(b"")
        finally:
            self._file.close()


class Uploaded:
    """A file in a bucket that is open for appending and is uploaded by a thread.

    If an upload fails, the failure is reported once, and the collected lines are uploaded when the
    bucket is available again. If another process has written the newest part in the meantime, that
    part is not overwritten, and no further lines are uploaded.
    """

    def __init__(
        self,
        name: Callable[[int], epath.Path],
        number: int = 0,
        content: bytes = b"",
        generation: bytes | None = None,
        heading: bytes = b"",
        in_parts: bool = True,
        required: bool = False,
    ):
        """Start the thread that uploads lines.

        Args:
          name: A function that returns the path of the part with a given number.
          number: The number of the part to continue.
          content: The current content of that part.
          generation: The generation of that part, or None if the part does not exist.
          heading: The content with which every new part begins.
          in_parts: Whether a large file continues in a new part.
          required: Whether `close` raises an error if lines could not be uploaded.
        """
        self._required = required
        self._name, self._number, self._heading = name, number, heading
        self._part_bytes = PART_BYTES if in_parts else math.inf
        self._content, self._waiting, self._generation = content or heading, b"", generation
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._closed = self._refused = self._replaced = False
        self._thread = threading.Thread(target=self._run, name=name(0).name, daemon=True)
        self._thread.start()

    def append(self, content: bytes) -> None:
        with self._lock:
            self._waiting += content

    def flush(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """Wait until all lines have been uploaded, or until several attempts have failed.

        Raises:
          RunFailed: Lines that are required could not be uploaded.
        """
        self._closed = True
        self._wake.set()
        self._thread.join()
        for _ in range(_LAST_TRIES - 1):
            self._upload()
        lost = f"{len(self._waiting)} bytes could not be uploaded to {self._name(0)} and are lost"
        if self._waiting and self._required:
            raise RunFailed(f"{lost}\nrun the same command to compute these results again")
        if self._waiting and not self._replaced:
            print(lost, file=sys.stderr)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(WINDOW_SECONDS)
            self._wake.clear()
            self._upload()

    def _upload(self) -> None:
        with self._lock:
            taken = self._waiting
        if not taken or self._replaced:
            return
        try:
            generation = self._written(self._name(self._number), self._content + taken)
        except RunFailed as error:
            if not self._refused:
                consequence = (
                    "the upload is tried again" if self._required else "training continues"
                )
                print(f"\n{error}; {consequence}", file=sys.stderr)
            self._refused = True
            return
        if generation is None:
            where = self._name(self._number)
            problem = f"{where} has been changed by another process: no more lines are uploaded"
            print(f"\n{problem}", file=sys.stderr)
            self._replaced = True
            return
        self._refused = False
        with self._lock:
            self._waiting = self._waiting[len(taken) :]
        self._content, self._generation = self._content + taken, generation
        if len(self._content) >= self._part_bytes:
            self._number, self._content, self._generation = self._number + 1, self._heading, None

    def _written(self, path: epath.Path, content: bytes) -> bytes | None:
        """Write `content` and return its generation, or None if another process has interfered."""
        if self._generation is not None:
            generation = objects.write(path, content, self._generation)
            if generation is not None:
                return generation
        stored = objects.read(path)
        if stored.content is None:
            absent = self._generation is None  # otherwise, the object has been removed
            return objects.write(path, content, stored.generation) if absent else None
        # An earlier upload may have succeeded although its reply was lost.
        ours = len(stored.content) > len(self._content) and content.startswith(stored.content)
        return objects.write(path, content, stored.generation) if ours else None
