"""Claims, which keep jobs from evaluating the same checkpoint at the same time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from fire_lm.measures.base import StillOurs
from fire_lm.processes import by_first, say
from fire_lm.storage import Lease, LeaseLost, in_bucket, lock_file, make_folder

_PAUSE = 0.2  # seconds between attempts to claim the same work


@contextlib.contextmanager
def claimed_by_job(workdir: str | epath.Path, what: str) -> Iterator[StillOurs | None]:
    """Claim work for all processes of a job; see `claimed`.

    Every process receives the result, or the error, of process 0. All processes must call the
    function that this yields.
    """
    own: StillOurs | None = None

    def lost() -> str:
        try:
            if own is not None:
                own()
        except LeaseLost as error:
            return str(error)
        return ""

    def still_ours() -> None:
        if loss := by_first(lost):
            raise LeaseLost(loss, everywhere=True)

    with contextlib.ExitStack() as stack:

        def claim() -> bool:
            nonlocal own
            own = stack.enter_context(claimed(workdir, what))
            return own is not None

        yield still_ours if by_first(claim) else None


@contextlib.contextmanager
def claimed(workdir: str | epath.Path, what: str) -> Iterator[StillOurs | None]:
    """Claim the work `what` of a run, for this process, for the duration of the `with` block.

    The context manager yields None if another job has claimed the work. Otherwise, it yields a
    function to call before results are written, which raises LeaseLost if another job has taken
    over the work because this process was paused for longer than its claim lasts. If the process
    dies, its claim ends immediately on a disk that supports locks. In a bucket, the claim ends one
    minute after the last renewal of its lease (`storage.Lease`).
    """
    folder = epath.Path(workdir) / ".sweep"
    by = _by_lease if in_bucket(workdir) else _by_lock
    with by(folder / what) as ours:
        yield ours


def kept(work: Callable[[], None]) -> bool:
    """Do claimed work, and return whether it was done; if not, another job has taken it over."""
    try:
        work()
    except LeaseLost as error:
        say(f"{error}: this process was paused, and the other one continues its work")
        return False
    return True


@contextlib.contextmanager
def claimed_when_free(workdir: str | epath.Path, what: str) -> Iterator[StillOurs]:
    """Wait until any other claim on the work `what` of a run ends, and then claim the work."""
    while True:
        with claimed(workdir, what) as ours:
            if ours:
                yield ours
                return
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _by_lock(path: epath.Path) -> Iterator[StillOurs | None]:
    make_folder(path.parent)
    with Path(path).open("a") as file:
        yield (lambda: None) if lock_file(file) else None


@contextlib.contextmanager
def _by_lease(path: epath.Path) -> Iterator[StillOurs | None]:
    lease = Lease(path)
    if lease.take():
        yield None
        return
    try:
        yield lease.check
    finally:
        lease.release()
