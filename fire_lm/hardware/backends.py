"""The backends of JAX that the environment selects."""

from __future__ import annotations

import os

import jax

from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.hardware.absent_tpu import skip_absent_tpu

_UNKNOWN = ("known backends", "Unknown backend")


def backend_problem() -> FireLMError | None:
    """Return the error for a backend that the environment selects and JAX cannot initialise.

    The result is None if JAX can use the backend, or if the environment does not select one. An
    unknown or absent backend is a UserError. A backend that exists but fails, such as a TPU that
    another process uses, is a RunFailed, so that a launcher starts the command again.
    """
    selected = [name for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME") if os.environ.get(name)]
    if not selected:
        return None
    try:
        jax.devices()
        return None
    except AssertionError:  # JAX knows the backend, but its plugin is not installed
        kind: type[FireLMError] = UserError
        problem = "this backend is not available"
    except RuntimeError as error:
        kind = UserError if any(word in str(error) for word in _UNKNOWN) else RunFailed
        problem = str(error).partition("\n")[0].partition(" (set JAX_PLATFORMS")[0]
        problem = "there is no such backend" if kind is UserError else problem
    # The command ends with this error, so its environment may change.
    values = {name: os.environ.pop(name) for name in selected}
    for setting in ("jax_platforms", "jax_platform_name"):
        jax.config.update(setting, None)
    skip_absent_tpu()
    available = sorted({jax.devices()[0].platform, "cpu"})
    settings = " and ".join(f"{name} is {value!r}" for name, value in values.items())
    return kind(f"{settings}: {problem}; available here: {', '.join(available)}")
