"""One writer for a run directory: two at once would spoil each other's logs and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from fire_lm.errors import RunFailed, UserError
from fire_lm.storage import Lease, in_bucket

_LOOK_SECONDS = 2.0


@contextlib.contextmanager
def only_writer(workdir: str) -> Iterator[Callable[[], None]]:
    """Holds the run directory until the block ends, or the process dies.

    On a disk the operating system releases the lock with the process, so a kill leaves nothing
    behind. In a bucket it is a lease (`storage.Lease`): after a kill on another machine the next
    start waits for up to a minute. Shared file systems without locks are used without one.

    Yields:
      A function to call before each save: it raises RunFailed where another process has taken the
      run directory over, or somebody has removed it. Only a bucket needs to be asked.

    Raises:
      UserError: another process holds it.
    """
    if jax.process_index() != 0:
        yield lambda: None
    elif in_bucket(workdir):
        with _leased(workdir) as still_ours:
            yield still_ours
    else:
        with _flocked(Path(workdir)):
            yield lambda: None


@contextlib.contextmanager
def _flocked(workdir: Path) -> Iterator[None]:
    with (workdir / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise _refused(str(workdir), file.read().strip()) from None
        except OSError:  # a file system without locks, as some shared ones are
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
        print(f"{workdir} is held by {holder}: waiting for a sign of life", flush=True)
    while holder == first and holder:
        time.sleep(_LOOK_SECONDS)
        holder = lease.take()
    if holder:
        raise _refused(workdir, holder)

    def still_ours() -> None:
        try:
            lease.sign()
        except RunFailed as error:
            if lease.lost:
                raise RunFailed(
                    f"{workdir} has been removed or taken over: stopped\n{error}"
                ) from None
            # If the storage merely refuses for now, the save itself will report it.

    try:
        yield still_ours
    finally:
        lease.release()


def _refused(workdir: str, holder: str) -> UserError:
    return UserError(
        f"{workdir} is being written by {holder}\nwait until that ends, or choose another --workdir"
    )
