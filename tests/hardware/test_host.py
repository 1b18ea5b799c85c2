"""The cores and the memory of this machine."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from fire_lm.hardware import host

REUSES = """
import ctypes, resource, sys
import numpy as np
from fire_lm.hardware.host import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(2):
    [np.ones(3_000_000, np.uint8) for _ in range(20)]
before = faults()
for _ in range(5):
    [np.ones(3_000_000, np.uint8) for _ in range(20)]
print(faults() - before)
"""


def page_faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", REUSES, mode],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_used_again():
    """Without the setting, the kernel clears most of the 100 arrays of 733 pages again."""
    assert page_faults("keep") < 2_000 < 20_000 < page_faults("return")


@pytest.mark.parametrize("platforms, calls", [("cpu", {(-4, 0), (-1, -1), (-8, 1)}), ("", set())])
def test_threads_share_an_arena_only_without_accelerators(monkeypatch, platforms, calls):
    """On other hosts, the threads that read data would wait for each other."""
    seen = set()
    library = SimpleNamespace(mallopt=lambda *parameter: seen.add(parameter))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(jax, "config", SimpleNamespace(values={"jax_platforms": platforms}))
    host.keep_freed_memory()
    assert seen == calls


BEFORE_JAX = """
from jax._src.xla_bridge import backends_are_initialized
from fire_lm import bench
from fire_lm.cli import startup

seen = []
bench.keep_freed_memory = startup.keep_freed_memory = lambda: seen.append(
    backends_are_initialized()
)
startup.prepare_process()
with bench.one_core():
    print(seen)
"""


def test_memory_is_kept_before_jax_starts():
    """Threads that already have arenas would keep them."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_JAX], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[False, False]\n"


@pytest.mark.parametrize(
    "cores, count, shares",
    [
        ({0, 1}, 2, [[0], [1]]),
        ({0, 1, 2, 3, 4}, 2, [[0, 2, 4], [1, 3]]),
        ({3}, 2, [[3], [3]]),
        ({0, 1}, 3, [[0], [1], [0]]),
    ],
)
def test_processes_do_not_share_cores_unless_there_are_too_few(cores, count, shares, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    assert host.shares_of_cores(count) == shares


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="not supported here")
def test_a_process_has_its_cores_from_its_start():
    """If it were restricted afterwards, it could have started threads and processes by then."""
    cores = os.sched_getaffinity(0)
    tell = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
    with host.starting_on([min(cores)]):
        told = subprocess.run(tell, capture_output=True, text=True).stdout
    assert told == f"{{{min(cores)}}}\n" and os.sched_getaffinity(0) == cores
    host.pin(2**22 + 1, [min(cores)])  # a process that has ended is not an error
