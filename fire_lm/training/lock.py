"""One writer for a run directory: two at once would spoil each other's logs and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import jax

from fire_lm.errors import UserError


@contextlib.contextmanager
def only_writer(workdir: str) -> Iterator[None]:
    """Holds the run directory, which exists, until the block ends, or the process dies.

    The operating system lets go of the lock with the process, so a kill leaves nothing behind.
    Buckets and some shared file systems have no such locks: there the user must see to it.

    Raises:
      UserError: another process holds it.
    """
    if "://" in workdir or jax.process_index() != 0:
        yield
        return
    with (Path(workdir) / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"{workdir} is being written by {file.read().strip()}\n"
                "wait until that ends, or choose another --workdir"
            ) from None
        except OSError:  # a file system without locks, as some shared ones are
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
