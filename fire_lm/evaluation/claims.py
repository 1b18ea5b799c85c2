"""Two sweepers never score one checkpoint at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from etils import epath

# On buckets: seconds after which a claim is read again to see whether it stood, between signs of
# life, and after which one without is void.
_SETTLE, _SIGN, _VOID = 5.0, 60.0, 600.0


@contextlib.contextmanager
def claimed(workdir: str | epath.Path, what: str, speaks: bool = True) -> Iterator[bool]:
    """Whether `what` of a run is ours while the block lasts; False: another job has it.

    Of a job's processes one `speaks`, the others claim nothing. A claim ends with its process: at
    once on a disk with locks, in ten minutes on a bucket.
    """
    if not speaks:
        yield False
        return
    folder = epath.Path(workdir) / ".sweep"
    folder.mkdir(parents=True, exist_ok=True)
    by = _by_file if "://" in str(workdir) else _by_lock
    with by(folder / what) as ours:
        yield ours


@contextlib.contextmanager
def _by_lock(path: epath.Path) -> Iterator[bool]:
    with Path(path).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks, as some shared ones are
            pass
        yield True


@contextlib.contextmanager
def _by_file(path: epath.Path) -> Iterator[bool]:
    """Buckets have no locks: of two that claim at once, the one whose file stays has it."""
    ours = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}"
    if _signs(path):
        yield False
        return
    path.write_text(f"{ours} {time.time()}")
    time.sleep(_SETTLE)
    if not _holds(path, ours):
        yield False
        return
    ended = threading.Event()
    thread = threading.Thread(target=_sign, args=(path, ours, ended), daemon=True)
    thread.start()
    try:
        yield True
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):  # it is void in ten minutes anyway
            if _holds(path, ours):
                path.unlink(missing_ok=True)


def _sign(path: epath.Path, ours: str, ended: threading.Event) -> None:
    while not ended.wait(_SIGN):
        with contextlib.suppress(Exception):  # of a bucket: the next sign may come through
            path.write_text(f"{ours} {time.time()}")


def _holds(path: epath.Path, ours: str) -> bool:
    return _read(path).startswith(ours)


def _read(path: epath.Path) -> str:
    """Nothing where there is none, also if it is being removed just now."""
    try:
        return path.read_text() if path.exists() else ""
    except Exception:  # a bucket's errors are TensorFlow's
        return ""


def _signs(path: epath.Path) -> bool:
    """Whether somebody has claimed it and lives."""
    last = _read(path).rpartition(" ")[2]
    return bool(last) and time.time() - float(last) < _VOID
