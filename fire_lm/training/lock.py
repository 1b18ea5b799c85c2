"""The lock of a run directory, without which two writers would corrupt each other's files."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import jax

from fire_lm.errors import RunFailed, UserError
from fire_lm.processes import failing_together
from fire_lm.storage import Lease, LeaseLost, in_bucket, lock_file

_LOOK_SECONDS = 2.0
_GLANCE_SECONDS = 1.0  # much longer than `writer_of` holds a lock to see whether it is free


class Held:
    """A lock of a run directory that this process or process 0 of its job holds.

    For a directory on a disk, and on every process except process 0, the methods do nothing.
    """

    def __init__(self, workdir: str = "", lease: Lease | None = None):
        self._workdir, self._lease = workdir, lease

    def __call__(self) -> None:
        """Renew the lock; call this before files are created or removed.

        Raises:
          LeaseLost: Another process has taken over the run directory, or the directory was removed.
          RunFailed: The request to the storage fails.
        """
        if self._lease is not None:
            with self._explaining_loss():
                self._lease.sign()

    def check(self) -> None:
        """Raise LeaseLost if the lock is known to be lost; this makes a request only after a pause.

        A pause is, for example, the suspension of the machine for longer than a lease lasts.
        """
        if self._lease is not None:
            with self._explaining_loss():
                try:
                    self._lease.check()
                except LeaseLost:
                    raise
                except RunFailed:  # the next save renews the lock
                    pass

    @contextlib.contextmanager
    def _explaining_loss(self) -> Iterator[None]:
        try:
            yield
        except LeaseLost as error:
            stopped = f"{self._workdir} was removed or taken over: stopped"
            raise LeaseLost(f"{stopped}\n{error}") from None


@contextlib.contextmanager
def only_writer(workdir: str) -> Iterator[Held]:
    """Lock the run directory until the block ends or the process dies.

    On a disk, the operating system releases the lock when the process ends, even if the process is
    killed. In a bucket, the lock is a lease (`storage.Lease`): if its holder on another machine has
    been killed, the next start waits up to a minute until the lease expires. On shared file systems
    that do not support locks, the run directory is not locked.

    Process 0 holds the lock for all processes of a job; the other processes wait until process 0
    has acquired the lock.

    Yields:
      The lock, which is to be renewed before files are created or removed.

    Raises:
      UserError: Another process has locked the run directory.
    """
    with contextlib.ExitStack() as held:
        still_ours = Held()
        with failing_together():
            if jax.process_index() == 0 and in_bucket(workdir):
                still_ours = held.enter_context(_leased(workdir))
            elif jax.process_index() == 0:
                held.enter_context(_flocked(Path(workdir)))
        yield still_ours


def writer_of(workdir: str) -> str:
    """Describe the process that has locked a run directory, or return "" if there is none.

    In a bucket, the lock of a killed process remains until the next start; the description includes
    the time at which the process last renewed its lease.
    """
    if in_bucket(workdir):
        return Lease(f"{workdir.rstrip('/')}/.lock").holder()
    path = Path(workdir) / ".lock"
    # There is no lock either where the path cannot exist, such as one that is too long.
    with contextlib.suppress(OSError), path.open() as file:
        if not lock_file(file, shared=True):
            return file.read().strip()
    return ""


def is_being_written(workdir: str) -> bool:
    """Return whether a process holds the lock of a run directory.

    In a bucket, the lock of a killed process counts for a minute from the first call on.
    """
    if in_bucket(workdir):
        return Lease(f"{workdir.rstrip('/')}/.lock").is_held()
    with contextlib.suppress(OSError), (Path(workdir) / ".lock").open() as file:
        return not lock_file(file, shared=True)
    return False


@contextlib.contextmanager
def _flocked(workdir: Path) -> Iterator[None]:
    path = workdir / ".lock"
    with _opened(path) as file:
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {since} UTC\n")
        file.flush()
        try:
            yield
        finally:
            if _is_at(path, file):
                path.unlink()


def _opened(path: Path) -> IO[str]:
    """Open and lock the file at `path`, which an earlier writer may be about to remove.

    Raises:
      UserError: Another process has locked the file.
    """
    ends = time.monotonic() + _GLANCE_SECONDS
    while True:
        file = path.open("a+")
        if lock_file(file):
            if _is_at(path, file):
                return file
            file.close()
            continue
        file.seek(0)
        holder = file.read().strip()
        file.close()
        if time.monotonic() > ends:
            raise _refused(str(path.parent), holder)
        time.sleep(_GLANCE_SECONDS / 10)


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether `path` is the path of an open file, and not of one that replaced it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


@contextlib.contextmanager
def _leased(workdir: str) -> Iterator[Held]:
    lease = Lease(f"{workdir.rstrip('/')}/.lock")
    first = holder = lease.take()
    if holder:
        print(
            f"{workdir} is locked by {holder}: waiting up to a minute to see whether this process "
            "is still running",
            flush=True,
        )
    while holder == first and holder:
        time.sleep(_LOOK_SECONDS)
        holder = lease.take()
    if holder:
        raise _refused(workdir, holder)

    try:
        yield Held(workdir, lease)
    finally:
        lease.release()


def _refused(workdir: str, holder: str) -> UserError:
    return UserError(
        f"{workdir} is in use by {holder}\nwait for it to finish, or choose another --workdir"
    )
