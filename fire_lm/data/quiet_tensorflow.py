"""TensorFlow, seqio and TFDS, imported without log output and without occupying accelerators.

The accelerators stay available to JAX. `storage.quiet` describes how TensorFlow's log lines are
suppressed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from fire_lm.storage.quiet import load_tensorflow, without_absl_warnings, without_log_lines


@contextlib.contextmanager
def without_their_warnings() -> Iterator[None]:
    """Suppress the deprecation warnings of TFDS and SentencePiece, and the log lines of TFDS.

    fire_lm cannot fix the causes of these warnings. If warnings are turned into errors,
    SentencePiece's wrapper crashes the process instead of raising an exception. TFDS also logs that
    an ordered data set is being shuffled, which is intended.
    """
    with without_absl_warnings(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # TFDS passes `deterministic` to `interleave`, which uses it only in parallel mode.
        warnings.filterwarnings("ignore", message="The `deterministic` argument")
        yield


with without_their_warnings():
    load_tensorflow()
    with without_log_lines():
        import seqio
        import tensorflow as tf
        import tensorflow_datasets as tfds

__all__ = ["seqio", "tf", "tfds", "without_their_warnings"]
