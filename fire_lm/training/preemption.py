"""Handlers for the signals that save and end a run: announcements of an end, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import jax

from fire_lm.hardware.host import ANNOUNCEMENTS


class StopFlag:
    requested = False
    by = "SIGTERM"


@contextlib.contextmanager
def sigterm_flag() -> Iterator[StopFlag]:
    """Yield a flag that SIGTERM and the other announcements set if the job has a single process.

    In a job of several processes, JAX's preemption service chooses one step for all processes
    instead; with flags, the processes could stop at different steps. It handles SIGTERM alone, so
    the other signals are passed on as SIGTERM. If one of them is ignored, as SIGHUP is under nohup,
    or has another handler, it is left alone.
    """
    flag = StopFlag()
    alone = jax.process_count() == 1

    def request(number: int, frame: Any) -> None:
        flag.by = signal.Signals(number).name
        if alone:
            flag.requested = True
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    handled = [signal.SIGTERM] if alone else []
    handled += [number for number in ANNOUNCEMENTS if signal.getsignal(number) is signal.SIG_DFL]
    previous = {number: signal.signal(number, request) for number in handled}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if flag.by == "Ctrl-C":  # the last save is complete
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ctrl_c_saves(flag: StopFlag) -> Iterator[None]:
    """Treat the first Ctrl-C within the block like SIGTERM, and end the run at once at the second.

    The block contains only the training steps: before the first step there is no state to save, so
    Ctrl-C ends the start-up at once. The operating system handles the second Ctrl-C (exit code 130
    in a shell), because Python would wait until a call into XLA returns. In a job of several
    processes, the first Ctrl-C is passed on as SIGTERM, so that all processes save the same step.
    If SIGINT is ignored or has another handler, it is left alone.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # such as under nohup
        yield
        return

    def request(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        flag.by = "Ctrl-C"
        words = "\nCtrl-C: saving this step, then stopping; press Ctrl-C again to stop at once\n"
        with contextlib.suppress(OSError):
            os.write(2, words.encode())
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            flag.requested = True

    signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        if flag.by != "Ctrl-C":  # otherwise a second Ctrl-C must still end the last save at once
            signal.signal(signal.SIGINT, signal.default_int_handler)
