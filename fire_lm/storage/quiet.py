"""Suppression of the log lines that C++ libraries print before their log settings take effect.

While a library is being loaded, file descriptor 2 is redirected to a temporary file. Afterwards,
every line of this file that is not such a log line is written to stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_QUIET = ("TF_CPP_MIN_LOG_LEVEL", "3")
_LOG_LINE = re.compile(rb"WARNING: All log messages before absl|[IWE]\d{4} \d\d:|[IWE]\d{4} \d{8,}")


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Suppress the log lines that C++ libraries write to stderr within the block.

    If stderr is closed, there is nothing to suppress.
    """
    try:
        saved = os.dup(2)
    except OSError:
        yield
        return
    _flush()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            with contextlib.suppress(OSError):  # no message may end the work
                for line in held:
                    if not _LOG_LINE.match(line):
                        os.write(2, line)


def _flush() -> None:
    with contextlib.suppress(OSError, AttributeError):  # it is None if it was closed at the start
        sys.stderr.flush()


@contextlib.contextmanager
def without_absl_warnings() -> Iterator[None]:
    """Suppress the warnings that Orbax logs through absl within the block, such as in a notebook.

    Orbax warns about files that checkpoints of a single item do not have.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(max(before, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(before)


def silence_logs() -> None:
    """Silence the absl and C++ logs of Orbax and TensorFlow, which may be loaded later."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    os.environ.setdefault(*_QUIET)


def load_tensorflow() -> None:
    """Import TensorFlow without log lines, leaving all accelerator memory to JAX."""
    os.environ.setdefault(*_QUIET)
    # oneDNN prints warnings about integers on many CPUs. It is not needed, because fire_lm does no
    # arithmetic with TensorFlow.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    with without_log_lines():
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
