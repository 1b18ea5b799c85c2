"""Environments for the processes that tests start: as conftest.py sets it, or as users have it."""

from __future__ import annotations

import os


def with_devices(count: int) -> dict[str, str]:
    """Return the environment of the tests, with this number of fake CPU devices."""
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    flags.append(f"--xla_force_host_platform_device_count={count}")
    return os.environ | {"XLA_FLAGS": " ".join(flags)}


def of_users() -> dict[str, str]:
    """Return the environment without fake devices and with the compiler's optimizations."""
    ours = ("XLA_FLAGS", "PJRT_NPROC", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    return {name: value for name, value in os.environ.items() if name not in ours}
