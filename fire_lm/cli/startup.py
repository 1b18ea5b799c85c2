"""The first steps of every verb that computes."""

from __future__ import annotations

import logging
import os

from fire_lm.hardware.absent_tpu import skip_absent_tpu


def quiet_libraries() -> None:
    """Silence absl and C++, through which Orbax and TensorFlow log details of no use to users."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    skip_absent_tpu()
