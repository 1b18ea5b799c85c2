"""This machine: its memory and cores, for programs that compute on its CPU, and its signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Sequence

# The signals that announce the end of a process, besides SIGTERM: SIGHUP comes from a terminal or
# an ssh connection that is closed, the others from batch systems (Slurm, Grid Engine, LSF).
ANNOUNCEMENTS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """If JAX uses the CPU, make glibc keep most of the memory that this process frees.

    Each training step on a CPU frees large arrays that the next step allocates again. By default,
    glibc returns their memory to the kernel, which must then clear it again. Results do not change.
    With another C library, this function has no effect.
    """
    import jax  # not at the top of the module, because the launcher does without JAX

    if jax.default_backend() != "cpu":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)  # never


def shares_of_cores(count: int) -> list[list[int]]:
    """Divide this process's cores among `count` processes, so that they do not compete.

    If there are fewer cores than processes, processes share cores.
    """
    known = hasattr(os, "sched_getaffinity")  # This holds on Linux.
    cores = sorted(os.sched_getaffinity(0) if known else range(os.cpu_count() or 1))
    return [cores[index % len(cores) :: count] for index in range(count)]


def pin(process: int, cores: Sequence[int]) -> None:
    """Restrict a process that has just started to `cores`, where the system supports this."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):  # It may already have ended.
            os.sched_setaffinity(process, cores)
