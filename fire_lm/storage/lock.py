"""Locks of files on a disk, which the operating system releases when their holder ends."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def lock_file(file: IO[Any], *, wait: bool = False, shared: bool = False) -> bool:
    """Lock an open file until it is closed, in this process and in those that inherit it.

    Where locks are not supported, as on some shared file systems, the file counts as locked.

    Args:
      wait: Whether to wait while another process holds the lock.
      shared: Whether others may hold such a lock too; it only keeps out one that is not shared.

    Returns:
      False if another process holds the lock.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
