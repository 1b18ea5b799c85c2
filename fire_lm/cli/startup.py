"""The first steps of every command that runs computations."""

from __future__ import annotations

from fire_lm.hardware.absent_tpu import skip_absent_tpu
from fire_lm.hardware.host import keep_freed_memory
from fire_lm.hardware.jax_settings import ignore_variables
from fire_lm.storage.quiet import silence_logs


def prepare_process() -> None:
    """Silence the logs of Orbax and TensorFlow, skip an absent TPU, and keep freed memory on CPUs.

    Without a TPU, libtpu is not loaded. Variables of the environment that would change results lose
    their effect.
    """
    silence_logs()
    skip_absent_tpu()
    keep_freed_memory()
    ignore_variables()
