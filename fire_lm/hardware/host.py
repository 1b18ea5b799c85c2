"""This machine: its memory and cores, for programs that compute on its CPU, and its signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

# The signals that announce the end of a process, besides SIGTERM: SIGHUP comes from a terminal or
# an ssh connection that is closed, the others from batch systems (Slurm, Grid Engine, LSF).
ANNOUNCEMENTS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """If JAX can use only the CPU, make glibc keep the memory that this process frees.

    Each training step on a CPU frees large arrays that the next step allocates again. By default,
    glibc returns their memory to the kernel, which must then clear it again. Results do not change.
    With another C library, or with a plugin for accelerators unless JAX_PLATFORMS is "cpu", this
    function has no effect. It must be called before JAX starts: a thread keeps the arena that it
    has, and memory of arenas other than the first is returned.
    """
    import jax  # not at the top of the module, because the launcher does without JAX

    if jax.config.values["jax_platforms"] != "cpu":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)  # never
    mallopt(_M_ARENA_MAX, 1)


def usable_cores() -> set[int]:
    """Return the cores that this process may use, or an empty set on systems other than Linux."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def shares_of_cores(count: int) -> list[list[int]]:
    """Divide this process's cores among `count` processes, so that they do not compete.

    If there are fewer cores than processes, processes share cores.
    """
    cores = sorted(usable_cores() or range(os.cpu_count() or 1))
    return [cores[index % len(cores) :: count] for index in range(count)]


def pin(process: int, cores: Sequence[int]) -> None:
    """Restrict a process or a thread to `cores`, where the system supports this."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):  # It may already have ended.
            os.sched_setaffinity(process, cores)


@contextlib.contextmanager
def starting_on(cores: Sequence[int]) -> Iterator[None]:
    """Within the block, processes that this thread starts are restricted to `cores`.

    A process that is restricted only after its start may have started others by then.
    """
    before = usable_cores()
    pin(0, cores)
    try:
        yield
    finally:
        pin(0, sorted(before))


def pin_threads(cores: set[int]) -> None:
    """Restrict the threads of this process, and all threads that they start later, to `cores`.

    An empty set has no effect.
    """
    for thread in os.listdir("/proc/self/task") if cores else ():
        pin(int(thread), sorted(cores))


def cpu_model() -> str:
    """Return the CPU's name as reported by /proc/cpuinfo, or else by Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n") if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
