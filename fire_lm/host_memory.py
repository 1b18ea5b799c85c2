"""How the C library hands out memory while XLA computes on a CPU.

Every step of training frees its temporary arrays and asks for them again. By default glibc gives
blocks of 128 KiB and more back to the kernel at once, which clears and maps them anew: a third of
the time of the quick start's steps. Nothing computed changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

import jax

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_KEPT = 2**25  # bytes of a block; the most that glibc takes in all versions
_KEPT_IN_ALL = 2**30  # bytes


def keep_freed_memory() -> None:
    """Lets this process keep what it frees, up to a gigabyte; only where JAX uses the CPU alone,
    and only with a C library that can."""
    if getattr(jax.config, "jax_platforms", None) != "cpu" or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_IN_ALL)
