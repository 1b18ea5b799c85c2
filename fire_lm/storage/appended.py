"""Files that grow, line by line, while a run goes on.

On a disk a line is there at once. In a bucket an object cannot grow, so lines are gathered for
half a minute and uploaded by a thread of their own: the step that logs never waits. The newest
object is uploaded anew each time until it has 256 KiB; then the next part begins, `metrics.jsonl`,
`metrics_1.jsonl`, `metrics_2.jsonl`, ... A process that is killed loses the lines of the last half
minute. Parts are read in both places: people copy runs from buckets.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.storage import objects
from fire_lm.storage.files import in_bucket, read_bytes, remove, replace_text

WINDOW_SECONDS = 30.0  # what a kill may lose
PART_BYTES = 2**18
_LAST_TRIES = 3  # for what is left when the file is closed


class Appended(Protocol):
    def append(self, content: bytes) -> None: ...

    def flush(self) -> None:
        """Asks for an early upload, without waiting for it."""

    def close(self) -> None: ...


def part(path: str | epath.Path, number: int) -> epath.Path:
    """The name of a part: `metrics.jsonl` is number 0, `metrics_1.jsonl` is number 1."""
    path = epath.Path(path)
    return path.with_name(f"{path.stem}_{number}{path.suffix}") if number else path


def read_parts(path: str | epath.Path) -> list[bytes]:
    """The content of each part; empty if there is no such file.

    Raises:
      RunFailed, OSError: one of them cannot be read.
    """
    found = (read_bytes(part(path, number)) for number in itertools.count())
    return list(itertools.takewhile(lambda content: content is not None, found))  # type: ignore[arg-type]


def cut_back(path: str | epath.Path, keep: Callable[[bytes], bytes]) -> None:
    """Replaces the content of each part by what `keep` returns for it.

    From the last part to the first, so that a kill in between leaves no line twice.

    Raises:
      RunFailed, OSError: the storage refuses.
    """
    parts = read_parts(path)
    trailing = True
    for number, content in reversed(list(enumerate(parts))):
        kept = keep(content)
        trailing = trailing and not kept
        if trailing and number:
            remove(part(path, number))
        elif kept != content:
            replace_text(part(path, number), kept.decode(errors="replace"))


def append_to(path: str | epath.Path) -> Appended:
    """Opens a file, and its newest part, for appending; made if absent.

    Raises:
      RunFailed, OSError: the storage refuses.
    """
    parts = read_parts(path) or [b""]
    number = len(parts) - 1
    if not in_bucket(path):
        return _OnDisk(part(path, number))
    if len(parts[-1]) >= PART_BYTES:
        number, parts = number + 1, [b""]
    return Uploaded(lambda n: part(path, n), number, parts[-1])


class _OnDisk:
    def __init__(self, path: epath.Path):
        self._file = Path(path).open("ab")

    def append(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class Uploaded:
    """A growing file in a bucket: objects that a thread uploads.

    A bucket that refuses is reported once, and what has gathered is uploaded when it recovers.
    """

    def __init__(
        self,
        name: Callable[[int], epath.Path],
        number: int = 0,
        content: bytes = b"",
        heading: bytes = b"",
    ):
        """`name` gives the path of each part, from `number` on, which holds `content` by now;
        every new part begins with `heading`."""
        self._name, self._number, self._heading = name, number, heading
        self._content, self._waiting = content or heading, b""
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._closed = self._refused = False
        self._thread = threading.Thread(target=self._run, name=name(0).name, daemon=True)
        self._thread.start()

    def append(self, content: bytes) -> None:
        with self._lock:
            self._waiting += content

    def flush(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """Waits until everything is uploaded, or has been refused several times."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        for _ in range(_LAST_TRIES - 1):
            if not self._waiting:
                return
            self._upload()
        if self._waiting:
            print(f"{len(self._waiting)} bytes of {self._name(0)} are lost", file=sys.stderr)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(WINDOW_SECONDS)
            self._wake.clear()
            self._upload()

    def _upload(self) -> None:
        with self._lock:
            taken = self._waiting
        if not taken:
            return
        try:
            objects.write(self._name(self._number), self._content + taken)
        except RunFailed as error:
            if not self._refused:
                print(f"\n{error}; training goes on", file=sys.stderr)
            self._refused = True
            return
        self._refused = False
        with self._lock:
            self._waiting = self._waiting[len(taken) :]
        self._content += taken
        if len(self._content) >= PART_BYTES:
            self._number, self._content = self._number + 1, self._heading
