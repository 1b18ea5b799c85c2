"""TensorFlow, seqio and TFDS, imported quietly and without taking the accelerators from JAX.

`storage.quiet` describes how TensorFlow's log lines are suppressed.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

from fire_lm.storage.quiet import load_tensorflow, without_log_lines


@contextlib.contextmanager
def without_their_warnings() -> Iterator[None]:
    """Mute the deprecation warnings of TFDS and SentencePiece.

    They are not ours to fix, and if warnings are errors, SentencePiece's wrapper crashes the
    process instead of raising. TFDS also logs that an ordered data set is shuffled.
    """
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # TFDS passes `deterministic` to its interleave, where it matters only in parallel.
            warnings.filterwarnings("ignore", message="The `deterministic` argument")
            yield
    finally:
        log.setLevel(level)


with without_their_warnings():
    load_tensorflow()
    with without_log_lines():
        import seqio
        import tensorflow as tf
        import tensorflow_datasets as tfds

__all__ = ["seqio", "tf", "tfds", "without_their_warnings"]
