"""The first steps of every verb that computes."""

from __future__ import annotations

import logging
import os

from fire_lm.hardware.absent_tpu import skip_absent_tpu


def quiet_libraries() -> None:
    """Orbax and TensorFlow log internals through absl and C++; what users need, we say."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    skip_absent_tpu()
