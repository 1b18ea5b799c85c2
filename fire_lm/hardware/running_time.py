"""A clock that stands still while this process does."""

from __future__ import annotations

import threading
import time

TICK_SECONDS = 1.0  # the usual time between two calls
_LONGEST = 2 * TICK_SECONDS  # more than this between two calls is a pause


class RunningTime:
    """The time in which this process was able to run, as measured by frequent calls.

    A process that is stopped by a signal, frozen by a container, or suspended with its machine
    cannot make progress. A wall clock runs on, so a time limit would be exceeded as soon as the
    process continues. A process that hangs still calls this clock, from the watchdog's threads.
    """

    def __init__(self) -> None:
        self._seconds, self._called = 0.0, time.monotonic()
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """Return the running time in seconds; a longer gap since the last call counts as 2 s."""
        with self._lock:
            now = time.monotonic()
            self._seconds += min(now - self._called, _LONGEST)
            self._called = now
            return self._seconds

    def tick(self, stop: threading.Event) -> None:
        """Call `seconds` every second until `stop` is set."""
        while not stop.wait(TICK_SECONDS):
            self.seconds()
