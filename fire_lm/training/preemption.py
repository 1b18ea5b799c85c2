"""Signals that end a run after saving it: SIGTERM from the machine, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import jax


class StopFlag:
    requested = False
    by = "SIGTERM"


@contextlib.contextmanager
def sigterm_flag() -> Iterator[StopFlag]:
    """Turn SIGTERM into a flag, in a job of one process.

    With several processes, JAX's preemption service agrees on a common step instead; flags would
    let the processes stop at different steps.
    """
    flag = StopFlag()

    def request(*_: Any) -> None:
        flag.requested = True

    alone = jax.process_count() == 1
    previous = signal.signal(signal.SIGTERM, request) if alone else None
    try:
        yield flag
    finally:
        if alone:
            signal.signal(signal.SIGTERM, previous)
        if flag.by == "Ctrl-C":  # the last save is complete
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ctrl_c_saves(flag: StopFlag) -> Iterator[None]:
    """While steps run, let the first Ctrl-C act like SIGTERM and the second end the run at once.

    Before the first step there is nothing to save, and Ctrl-C ends the start-up. The second Ctrl-C
    is left to the operating system (exit code 130 in a shell): Python would wait for a call into
    XLA to return. In a job of several processes, the first is passed on as SIGTERM, so that all
    save the same step.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # under nohup, say
        yield
        return

    def request(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        flag.by = "Ctrl-C"
        words = "\nCtrl-C: this step is saved before the run ends; Ctrl-C again ends it at once\n"
        os.write(2, words.encode())
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            flag.requested = True

    signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        if flag.by != "Ctrl-C":  # otherwise a second one must still end the last save at once
            signal.signal(signal.SIGINT, signal.default_int_handler)
