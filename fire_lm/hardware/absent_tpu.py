"""Functions that keep JAX from loading libtpu on a machine without a TPU."""

from __future__ import annotations

import glob
import importlib.util
import os
from importlib.metadata import entry_points

import jax


def has_tpu() -> bool:
    """Return whether JAX would use a TPU on this machine.

    To avoid initialising JAX, only JAX_PLATFORMS, libtpu's presence and the device files are
    checked.
    """
    allowed = (os.environ.get("JAX_PLATFORMS") or "tpu").split(",")
    devices = (*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*"))
    return "tpu" in allowed and _is_installed("libtpu") and bool(devices)


def skip_absent_tpu() -> None:
    """Keep JAX from loading libtpu if there is no TPU.

    Without a TPU, loading libtpu takes several seconds and prints errors. Nothing changes if
    JAX_PLATFORMS is set, or if a JAX plugin for another kind of device is installed.
    """
    others = _is_installed("jax_plugins") or entry_points(group="jax_plugins")  # such as for GPUs
    if "JAX_PLATFORMS" not in os.environ and not has_tpu() and not others:
        jax.config.update("jax_platforms", "cpu")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
