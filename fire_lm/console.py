"""What a command prints: progress bars with an ETA, phases, periodic lines, and where they go.

`standard_streams` decides once, for all of them, what happens to text that cannot be written.
"""

from __future__ import annotations

import collections
import io
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from fire_lm.errors import OutputLost, ReaderEnded

_SIGN_OF_LIFE = 10.0  # seconds between reports that the work is still running

_PATIENCE_SECONDS = 5.0  # how long a patient progress bar shows nothing

# The remaining time is estimated from the work done during this most recent period.
_RECENT_SECONDS = 60.0


def duration(seconds: float) -> str:
    """Format a duration as `1:02:03`, or as `2:03` if it is shorter than an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def columns(rows: Sequence[Sequence[str]], words: int | None = None) -> list[str]:
    """Return the lines of a table with aligned columns.

    The first `words` columns hold text and are aligned on the left, the others hold numbers. By
    default, all columns hold text.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if words is None or index < words else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def say(text: str) -> None:
    """Print progress to stderr, which keeps it separate from results."""
    print(text, file=sys.stderr, flush=True)


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
        if done >= self._total or done <= before:
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

    def report() -> None:
        say(f"  {what}: {duration(time.monotonic() - start)} so far")

    with every(_SIGN_OF_LIFE, report):
        yield


@contextmanager
def every(seconds: float, report: Callable[[], None]) -> Iterator[None]:
    """Call `report` every `seconds` seconds from a separate thread while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            report()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


_STALL_SECONDS = 10.0  # the time that a reader may stall before progress is dropped


class Guarded(io.RawIOBase):
    """A file descriptor for messages, which end the command only if they are its result.

    Progress that cannot be written is dropped: if the disk is full, the terminal or the reader is
    gone, or the reader stalls, as a pager does that waits for its user. The first failure of stdout
    is reported to stderr.

    Attributes:
      required: Whether what is written is the result of the command and must not be lost.
    """

    def __init__(self, descriptor: int, name: str):
        self._descriptor, self._name = descriptor, name
        self._stalled = self._reported = False
        self.required = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, content: Any) -> int:
        """Write the beginning of `content` and return its size in bytes.

        Raises:
          ReaderEnded: The content is required, and no process can read it any more.
          OutputLost: The content is required and cannot be written for another reason.
        """
        # A pipe that is ready takes this many bytes without blocking.
        piece = memoryview(content)[: select.PIPE_BUF]
        try:
            while True:
                if not self._ready():
                    return len(content)
                with suppress(BlockingIOError):  # the reader has made the pipe non-blocking
                    return os.write(self._descriptor, piece)
        except OSError as error:
            told, self._reported = self._reported, True
            problem = f"{self._name} cannot be written: {error.strerror}"
            if self.required and isinstance(error, BrokenPipeError):
                raise ReaderEnded from None
            if self.required:
                raise OutputLost(problem) from None
            if self._name == "stdout" and not told:
                print(f"\n{problem}; the work continues", file=sys.stderr, flush=True)
            return len(content)

    def _ready(self) -> bool:
        """Wait until the descriptor can be written, and return whether it can."""
        seconds = None if self.required else 0.0 if self._stalled else _STALL_SECONDS
        self._stalled = not select.select([], [self._descriptor], [], seconds)[1]
        return not self._stalled


def duplicate_of(descriptor: int) -> int:
    """Duplicate a descriptor or, if it is closed, return one to which writing fails."""
    try:
        return os.dup(descriptor)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)


@contextmanager
def standard_streams() -> Iterator[Guarded | None]:
    """Guard stdout and stderr within the block; yield stdout's guard.

    Characters that the encoding of stdout lacks are replaced. Standard streams that were closed
    when the process began are opened, because the next files to be opened would take their place
    and receive messages. Writing to them fails. Streams that another program has put in place of
    its own, such as a notebook, remain as they are; the result is then None.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest descriptor, which is this one
    before = sys.stdout, sys.stderr
    output = _guard(sys.stdout, 1, "stdout", errors="replace")
    errors = _guard(sys.stderr, 2, "stderr", errors="backslashreplace")
    guard = output.buffer.raw if output else None  # type: ignore[attr-defined]
    if output:
        sys.stdout = output
    if errors:
        sys.stderr = errors
    try:
        yield guard
    finally:
        if guard is not None:
            guard.required = False
        for stream in filter(None, (output, errors)):
            stream.flush()
        sys.stdout, sys.stderr = before


def _guard(stream: TextIO | None, descriptor: int, name: str, errors: str) -> TextIO | None:
    """Return a guarded stream in place of `stream`, or None if that is not a plain file."""
    line_buffering = name == "stderr"
    if stream is not None:
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # the same with PYTHONUNBUFFERED
        if not (isinstance(stream, io.TextIOWrapper) and isinstance(raw, io.FileIO)):
            return None
        with suppress(OSError):
            stream.flush()
        descriptor, line_buffering = raw.fileno(), stream.line_buffering
    return io.TextIOWrapper(
        io.BufferedWriter(Guarded(descriptor, name)),
        encoding=None if stream is None else stream.encoding,
        errors=errors,
        line_buffering=line_buffering,
        write_through=stream is not None and stream.write_through,
    )
