"""SIGTERM of a single process, which comes before a machine is taken away."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import jax


class StopFlag:
    requested = False


@contextlib.contextmanager
def sigterm_flag() -> Iterator[StopFlag]:
    """Turns SIGTERM into a flag. With several processes JAX's preemption service agrees on a
    step instead, and a flag of one process alone would let them part."""
    flag = StopFlag()
    if jax.process_count() > 1:
        yield flag
        return

    def request(*_: Any) -> None:
        flag.requested = True

    previous = signal.signal(signal.SIGTERM, request)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGTERM, previous)
