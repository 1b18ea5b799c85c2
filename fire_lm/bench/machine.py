"""A description of the machine on which a benchmark runs; creating it starts JAX."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping

import jax

from fire_lm.bench.race import Clock, Row
from fire_lm.hardware import host


def clock() -> Clock:
    """Return the kind of time to measure: the process's CPU time on a CPU, wall time elsewhere."""
    return "CPU" if jax.default_backend() == "cpu" else "wall"


def load() -> float:
    """Return the load average of the last minute.

    Call this function before the benchmark, which itself adds to the load.
    """
    return os.getloadavg()[0]


def machine(load: float, versions: Mapping[str, str]) -> Row:
    """Return a description of the machine, with the cores to which the process is bound.

    `load` is the load average before the start, and `versions` are those of libraries besides
    Python and JAX.
    """
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "processor": host.cpu_model() if device.platform == "cpu" else device.device_kind,
        "backend": device.platform,
        "clock": clock(),
        "cores": sorted(host.usable_cores()),
        "load": load,
        "versions": {"python": platform.python_version(), "jax": jax.__version__, **versions},
    }
