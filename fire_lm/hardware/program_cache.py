"""Compiled programs in the user's cache directory, which later processes on the same CPU reuse.

Compiling takes most of the time before the first step of a small model. JAX has a cache of compiled
programs, whose keys contain the program, the compiler's options and the version of jaxlib. But JAX
writes its files in place, so that a process that is killed leaves half a program which is never
replaced, and nothing limits the size of the folder. Its keys also lack what a program compiled for
a CPU depends on: the instructions of the CPU, and the number of cores, by which the compiler splits
loops. `ProgramFolder` is the folder that JAX uses instead.

A folder of the user's own (JAX_COMPILATION_CACHE_DIR) is left to JAX, and
JAX_ENABLE_COMPILATION_CACHE=0 turns all of this off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from pathlib import Path

import jax
import jaxlib
from jax._src import compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

from fire_lm.hardware.host import usable_cores

MOST_BYTES = 2**29
# The folder is listed after the first program that a process writes, and after this many bytes.
_BYTES_BETWEEN_LISTINGS = 2**25
_DIGEST_BYTES = 32

# The lines of /proc/cpuinfo that tell the instructions of a CPU, on x86 and on Arm.
_CPU_LINES = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)


class ProgramFolder(CacheInterface):
    """A folder of compiled programs, each in a file of its own.

    A file consists of a SHA-256 of the key and the program, and the program. It appears as a whole,
    and a file with another digest counts as absent, and is replaced. Errors of the storage are
    ignored: the program is then compiled.

    Args:
      folder: The folder, which exists.
      machine: What programs depend on besides JAX's key; see `machine`.
      most_bytes: The size of all files above which those that were not read for the longest time
        are removed.
    """

    def __init__(self, folder: Path, machine: str, most_bytes: int = MOST_BYTES):
        self._path = folder
        self._machine = machine
        self._most_bytes = most_bytes
        self._unlisted_bytes: float = float("inf")  # written since the folder was last listed

    def get(self, key: str) -> bytes | None:
        """Return the program of a key, or None."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, program = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest != _digest(path.name, program):
            return None
        with contextlib.suppress(OSError):  # a folder that may only be read
            os.utime(path)
        return program

    def put(self, key: str, value: bytes) -> None:
        """Write the program of a key, unless this fails."""
        path = self._file(key)
        try:
            descriptor, partial = tempfile.mkstemp(dir=self._path)
        except OSError:
            return
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_digest(path.name, value) + value)
            os.replace(partial, path)
        except OSError:  # such as a full disk
            with contextlib.suppress(OSError):
                os.unlink(partial)
        self._unlisted_bytes += len(value)
        if self._unlisted_bytes > min(_BYTES_BETWEEN_LISTINGS, self._most_bytes / 4):
            self._unlisted_bytes = 0
            self._remove_oldest()

    def _file(self, key: str) -> Path:
        return self._path / f"{key}-{self._machine}"

    def _remove_oldest(self) -> None:
        """Remove files, also those of processes that were killed, until the size is allowed."""
        files = []
        for path in self._path.iterdir():
            with contextlib.suppress(OSError):  # another process has removed it
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def keep_programs() -> None:
    """Make JAX keep the programs that it compiles for this CPU, and reuse those it has kept.

    Nothing changes on other devices, in a job of several processes, if the user has chosen a folder
    for JAX, if the compiler is to write files for each program, or if there is no folder that only
    this user can write: whoever can write a program into it could run it as this user.
    """
    chosen = "jax_platforms", "jax_compilation_cache_dir", "jax_enable_compilation_cache"
    platforms, own, enabled = (getattr(jax.config, name) for name in chosen)
    several = "JAX_COORDINATOR_ADDRESS" in os.environ
    written = "xla_dump" in os.environ.get("XLA_FLAGS", "")
    if platforms != "cpu" or own is not None or not enabled or several or written:
        return
    if (folder := own_folder()) is None:
        return
    programs, of_jax = ProgramFolder(folder, machine()), compilation_cache.get_file_cache

    def cache_of(path: str) -> tuple[CacheInterface, str] | None:
        return (programs, path) if path == str(folder) else of_jax(path)

    compilation_cache.get_file_cache = cache_of
    jax.config.update("jax_compilation_cache_dir", str(folder))
    least = "jax_persistent_cache_min_compile_time_secs"
    if least.upper() not in os.environ:
        jax.config.update(least, 0.0)  # small programs are many


def own_folder() -> Path | None:
    """Return the folder of programs in the user's cache directory, or None if it is not usable."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        parent = Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"
        folder = parent / "fire_lm" / "programs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # there is no home directory, or it cannot be written
        return None
    others_write = bool(status.st_mode & 0o022)
    return None if others_write or status.st_uid != os.geteuid() else folder


def machine() -> str:
    """Return a digest of what a program compiled for this CPU depends on besides JAX's key."""
    what = [jax.__version__, jaxlib.__version__, platform.system(), platform.machine()]
    what += cpu_lines() or [platform.processor(), platform.node()]
    what += [f"{len(usable_cores()) or os.cpu_count()} cores"]
    # XLA reads the first two instead of the number of cores.
    what += [f"{name}={os.environ.get(name)}" for name in ("NPROC", "PJRT_NPROC", "XLA_FLAGS")]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]


def cpu_lines(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the lines of the first core that tell its instructions, or none if there are none."""
    try:
        first = cpuinfo.read_text().split("\n\n")[0]
    except OSError:
        return []
    lines = {line.partition(":")[0].strip(): line for line in first.split("\n")}
    if not lines.keys() & {"flags", "Features"}:
        return []
    return [lines[name] for name in _CPU_LINES if name in lines]


def _digest(name: str, program: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + program).digest()
