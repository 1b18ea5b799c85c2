"""The memory that programs need and that devices have, compared before anything is allocated."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fire_lm.errors import UserError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_GIB = 2**30


class TooLarge(UserError):
    """The error for a program that needs more memory than there is."""


@dataclasses.dataclass(frozen=True)
class Free:
    """The memory that is free for new arrays on each of some devices.

    `owner` is what has this memory, as it should appear in a message.
    """

    bytes: int
    owner: str


def free_memory(devices: Sequence[Any]) -> Free | None:
    """Return the memory that is free on each of these devices, or None if it is unknown.

    Devices of other processes are ignored. A CPU has the memory that this machine and the control
    groups of this process leave available; all devices on the CPU share it.
    """
    import jax  # not at the top of the module, because the launcher does without JAX

    own = [device for device in devices if device.process_index == jax.process_index()]
    if not own:
        return None
    if own[0].platform == "cpu":
        free = available_bytes()
        return None if free is None else Free(free // len(own), "this machine has")
    stats = own[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return Free(stats["bytes_limit"] - stats.get("bytes_in_use", 0), f"{own[0].device_kind} has")


def new_bytes(compiled: Any) -> int:
    """Return the bytes that a compiled program allocates on one device, without its arguments.

    The compiler's number is that of the arrays that exist at the same time. It is 0 if the compiler
    does not report it.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    new_outputs: int = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return new_outputs + int(memory.temp_size_in_bytes)


def check_fits(
    needed: float, free: Free | None, what: str, remedy: str, at_least: bool = False
) -> None:
    """Raise TooLarge if new arrays do not fit in the free memory.

    Args:
      needed: The bytes of the arrays on a device.
      free: The free memory; None if it is unknown, in which case nothing is checked.
      what: What needs the memory, as the beginning of the message.
      remedy: What to change, as the second line of the message.
      at_least: Whether more than `needed` may be needed.
    """
    if free is not None and needed > free.bytes:
        raise TooLarge(
            f"{what} needs {'at least ' * at_least}{needed / _GIB:.1f} GiB of memory, but "
            f"{free.owner} only "
            f"{free.bytes / _GIB:.1f} GiB free\n{remedy}"
        )


def check_program(compiled: Any, devices: Sequence[Any], what: str, remedy: str) -> None:
    """Raise TooLarge if a compiled program, whose arguments exist already, does not fit.

    In a job of several processes, which would have to agree on the outcome, nothing is checked.
    `check_fits` describes the other arguments.
    """
    import jax

    if jax.process_count() == 1:
        check_fits(new_bytes(compiled), free_memory(devices), what, remedy)


def available_bytes() -> int | None:
    """Return the memory that this process can still allocate on this machine, or None if unknown.

    It includes swap space, what the kernel would free, such as cached files, and what the allocator
    of this process has kept (host.py).
    """
    try:
        text = (_PROC / "meminfo").read_text()
    except OSError:
        return None
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"(?m)^(\w+):\s+(\d+) kB", text)}
    if "MemAvailable" not in sizes:
        return None
    free = [sizes["MemAvailable"] + sizes.get("SwapFree", 0)]
    return max(0, min([*free, *_free_in_cgroups()])) + _kept_by_malloc()


def _kept_by_malloc() -> int:
    """Return the bytes that glibc's malloc has freed, but not returned to the kernel."""

    class Info(ctypes.Structure):
        _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]

    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library, or an older version
        return 0
    mallinfo2.restype = Info
    return int(mallinfo2().field_8)  # `fordblks` of malloc.h


def _free_in_cgroups() -> list[int]:
    """Return the bytes that are free below the limit of each control group of this process."""
    try:
        lines = (_PROC / "self/cgroup").read_text().split("\n")
    except OSError:
        return []
    free = []
    for line in filter(None, lines):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        if controllers:  # version 1
            top, names = _CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            top, names = _CGROUPS, ("memory.max", "memory.current")
        folder = top / path.strip("/")
        # In a container, the path may be that outside of the container.
        for place in [folder, *folder.parents]:
            if place == top or top in place.parents:
                free += _free_below_limit(place, *names)
    return free


def _free_below_limit(folder: Path, limit: str, usage: str) -> list[int]:
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        stat = (folder / "memory.stat").read_text()
    except (OSError, ValueError):  # there is no such group, or its limit is "max"
        return []
    cached = re.search(r"(?m)^(?:total_)?inactive_file (\d+)", stat)
    return [most - used + (int(cached[1]) if cached else 0)]
