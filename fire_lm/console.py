"""Progress reports for long operations: a progress bar with an ETA, phases and periodic lines."""

from __future__ import annotations

import collections
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGN_OF_LIFE = 10.0  # seconds between reports that the work is still running

_PATIENCE_SECONDS = 5.0  # how long a patient progress bar shows nothing

# The remaining time is estimated from the work done during this most recent period.
_RECENT_SECONDS = 60.0


def duration(seconds: float) -> str:
    """Format a duration as `1:02:03`, or as `2:03` if it is shorter than an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """A progress bar with an ETA.

    On a terminal, the bar is a single line that is updated in place. Elsewhere, a new line is
    written every few seconds. With `patient`, nothing is shown during the first few seconds, for
    work that usually finishes within that time. Counts are divided by `unit` before they are
    shown, for example by the number of bytes in a megabyte.
    """

    def __init__(
        self,
        total: int,
        quiet: bool = False,
        patient: bool = False,
        unit: int = 1,
    ):
        self._total, self._unit = max(1, total), unit
        self._end, self._interval = ("\r", 0.2) if sys.stdout.isatty() else ("\n", 5.0)
        self._quiet, self._shown = quiet, time.monotonic() if patient else -math.inf
        self._patience = _PATIENCE_SECONDS if patient else 0.0
        self._any = False
        self._began = math.inf
        # (time, work done) pairs of the last minute. They begin with the first call of `show`, so
        # that start-up time does not affect the estimate.
        self._recent: collections.deque[tuple[float, int]] = collections.deque()

    def show(self, done: int, text: str, share: float | None = None) -> None:
        """Show `done` out of the total, followed by `text`, unless the bar was updated recently.

        `share` is the share of all work that is done, from 0 to 1, for work that consists of more
        than what is counted. The ETA then follows from the time since the first call.
        """
        now = time.monotonic()
        self._began = min(self._began, now)
        self._remember(now, done)
        wait = max(self._interval, self._patience)
        if self._quiet or (now - self._shown < wait and (done < self._total or self._patience)):
            return
        self._shown, self._any, self._patience = now, True, 0.0
        filled = round(20 * min(1.0, done / self._total))
        bar = "#" * filled + "-" * (20 - filled)
        count = f"{self._count(done)}/{self._count(self._total)}"
        line = f"[{bar}] {count}  {text}{self._eta(done, share)}"
        print(line.ljust(100) if self._end == "\r" else line, end=self._end, flush=True)

    def _remember(self, now: float, done: int) -> None:
        self._recent.append((now, done))
        while len(self._recent) > 2 and self._recent[1][0] < now - _RECENT_SECONDS:
            self._recent.popleft()

    def _eta(self, done: int, share: float | None) -> str:
        """Return the ETA at the last minute's rate, or "" if there is no rate or no work left."""
        (then, before), (now, _) = self._recent[0], self._recent[-1]
        if share is not None:
            left = (now - self._began) * (1 - share) / share if 0 < share < 1 else 0.0
            return f"  ETA {duration(left)}" if left else ""
        if done >= self._total:
            return ""
        if done <= before:
            return ""
        return f"  ETA {duration((now - then) * (self._total - done) / (done - before))}"

    def _count(self, number: int) -> str:
        if self._unit == 1:
            return str(number)
        digits = 1 if self._total < 100 * self._unit else 0
        return f"{number / self._unit:.{digits}f}"

    def close(self) -> None:
        if self._end == "\r" and not self._quiet and self._any:
            print(flush=True)


@contextmanager
def phase(name: str, quiet: bool = False) -> Iterator[None]:
    """Print a phase's name, its elapsed time every 10 seconds, and its duration, unless `quiet`."""
    start = time.monotonic()
    if quiet:
        yield
        return
    print(f"{name} ...", end=" ", flush=True)
    with every(
        _SIGN_OF_LIFE, lambda: print(f"{time.monotonic() - start:.0f} s ...", end=" ", flush=True)
    ):
        yield
    print(f"{time.monotonic() - start:.1f} s", flush=True)


@contextmanager
def signs_of_life(what: str) -> Iterator[None]:
    """Print the elapsed time to stderr every 10 seconds during work of unpredictable duration."""
    start = time.monotonic()

    def say() -> None:
        print(f"  {what}: {duration(time.monotonic() - start)} so far", file=sys.stderr, flush=True)

    with every(_SIGN_OF_LIFE, say):
        yield


@contextmanager
def every(seconds: float, say: Callable[[], None]) -> Iterator[None]:
    """Call `say` every `seconds` seconds from a separate thread while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            say()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
