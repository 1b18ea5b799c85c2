"""The first steps of every verb that runs computations."""

from __future__ import annotations

import logging
import os

from fire_lm.hardware.absent_tpu import skip_absent_tpu


def quiet_libraries() -> None:
    """Silence the absl and C++ logs of Orbax and TensorFlow, and skip libtpu if there is no TPU."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    skip_absent_tpu()
