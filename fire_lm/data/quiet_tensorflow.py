"""TensorFlow, seqio and TFDS, imported quietly and without taking the accelerators from JAX.

TensorFlow's C++ code writes to stderr before its own log level counts, so file descriptor 2 goes
to a temporary file during the import; whatever in it is not such a log line is passed on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

_LOG_LINE = re.compile(rb"WARNING: All log messages before absl|[IWE]\d{4} \d\d:|[IWE]\d{4} \d{8,}")


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def without_their_warnings() -> Iterator[None]:
    """Mutes the deprecation warnings of TFDS and SentencePiece.

    They are not ours to mend, and where warnings are errors SentencePiece's wrapper crashes the
    process instead of raising. TFDS also logs: of an ordered data set that it is shuffled.
    """
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # TFDS passes `deterministic` to its interleave, which needs it only in parallel.
            warnings.filterwarnings("ignore", message="The `deterministic` argument")
            yield
    finally:
        log.setLevel(level)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# oneDNN complains about integers on many CPUs, and we do no arithmetic here.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
with _without_log_lines(), without_their_warnings():
    import seqio
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # Otherwise TensorFlow takes the accelerator's memory that JAX needs.
    tf.config.set_visible_devices([], "GPU")

__all__ = ["seqio", "tf", "tfds", "without_their_warnings"]
