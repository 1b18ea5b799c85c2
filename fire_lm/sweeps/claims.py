"""Claims, which keep jobs from evaluating the same checkpoint at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from fire_lm.processes import by_first
from fire_lm.storage import Lease, in_bucket, make_folder

_PAUSE = 0.2  # seconds between attempts to claim the same work


@contextlib.contextmanager
def claimed_by_job(workdir: str | epath.Path, what: str) -> Iterator[bool]:
    """Claim work for all processes of a job; see `claimed`.

    Every process receives the result, or the error, of process 0.
    """
    with contextlib.ExitStack() as held:
        yield by_first(lambda: held.enter_context(claimed(workdir, what)))


@contextlib.contextmanager
def claimed(workdir: str | epath.Path, what: str) -> Iterator[bool]:
    """Claim the work `what` of a run, for this process, for the duration of the `with` block.

    The context manager yields True if the claim succeeds, or False if another job has claimed the
    work. If the process dies, its claim ends immediately on a disk that supports locks. In a
    bucket, the claim ends one minute after the last renewal of its lease (`storage.Lease`).
    """
    folder = epath.Path(workdir) / ".sweep"
    by = _by_lease if in_bucket(workdir) else _by_lock
    with by(folder / what) as ours:
        yield ours


@contextlib.contextmanager
def held(workdir: str | epath.Path, what: str) -> Iterator[None]:
    """Wait until any other claim on the work `what` of a run ends, and then claim the work."""
    while True:
        with claimed(workdir, what) as ours:
            if ours:
                yield
                return
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _by_lock(path: epath.Path) -> Iterator[bool]:
    make_folder(path.parent)
    with Path(path).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # The file system, like some shared ones, does not support locks.
            pass
        yield True


@contextlib.contextmanager
def _by_lease(path: epath.Path) -> Iterator[bool]:
    lease = Lease(path)
    if lease.take():
        yield False
        return
    try:
        yield True
    finally:
        lease.release()
