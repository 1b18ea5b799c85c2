"""The lock of a run directory: two writers would corrupt each other's logs and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from fire_lm.errors import UserError
from fire_lm.processes import failing_together
from fire_lm.storage import Lease, LeaseLost, in_bucket

_LOOK_SECONDS = 2.0


@contextlib.contextmanager
def only_writer(workdir: str) -> Iterator[Callable[[], None]]:
    """Hold the run directory until the block ends or the process dies.

    On a disk the operating system releases the lock with the process, so a kill leaves nothing
    behind. In a bucket the lock is a lease (`storage.Lease`): after a kill on another machine, the
    next start waits for up to a minute. Shared file systems without locks are used unlocked.

    Process 0 holds the lock for all processes of a job, which wait until it does.

    Yields:
      A function to call before anything is published or removed. It raises LeaseLost if another
      process has taken over the run directory or somebody has removed it, and RunFailed if the
      storage does not answer. It checks only buckets.

    Raises:
      UserError: Another process holds the run directory.
    """
    with contextlib.ExitStack() as held:
        still_ours: Callable[[], None] = lambda: None  # noqa: E731
        with failing_together():
            if jax.process_index() == 0 and in_bucket(workdir):
                still_ours = held.enter_context(_leased(workdir))
            elif jax.process_index() == 0:
                held.enter_context(_flocked(Path(workdir)))
        yield still_ours


def writer_of(workdir: str) -> str:
    """Return the process that holds a run directory, with its host, or "" if none does.

    In a bucket, a process that was killed within the last minutes is still named, with the time
    of its last sign of life.
    """
    if in_bucket(workdir):
        return Lease(f"{workdir.rstrip('/')}/.lock").holder()
    path = Path(workdir) / ".lock"
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip()
    return ""


@contextlib.contextmanager
def _flocked(workdir: Path) -> Iterator[None]:
    with (workdir / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise _refused(str(workdir), file.read().strip()) from None
        except OSError:  # some shared file systems have no locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def _leased(workdir: str) -> Iterator[Callable[[], None]]:
    lease = Lease(f"{workdir.rstrip('/')}/.lock")
    first = holder = lease.take()
    if holder:
        print(
            f"{workdir} is held by {holder}: waiting up to a minute to see whether it is still "
            "running",
            flush=True,
        )
    while holder == first and holder:
        time.sleep(_LOOK_SECONDS)
        holder = lease.take()
    if holder:
        raise _refused(workdir, holder)

    def still_ours() -> None:
        try:
            lease.sign()
        except LeaseLost as error:
            raise LeaseLost(f"{workdir} was removed or taken over: stopped\n{error}") from None

    try:
        yield still_ours
    finally:
        lease.release()


def _refused(workdir: str, holder: str) -> UserError:
    return UserError(
        f"{workdir} is being written by {holder}\n"
        "wait for it to finish, or choose another --workdir"
    )
