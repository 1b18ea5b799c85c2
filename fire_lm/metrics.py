"""What a run says about itself: metrics files, progress, FLOPs by one stated convention."""

from __future__ import annotations

import collections
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from etils import epath

from fire_lm import storage
from fire_lm.tensorboard_events import EventsInBucket, EventsOnDisk

FLOPS_CONVENTION = (
    "6 N + 12 layers x width x length; N = parameters without embedding and encoding, plus the "
    "head; no causal discount"
)

# Peak dense bfloat16 FLOP/s of one device, by a substring of jax's device_kind.
_PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}


def flops_per_token(num_parameters: int, num_layers: int, width: int, length: int) -> float:
    """Training FLOPs per token by `FLOPS_CONVENTION`; width = heads x head dim."""
    return 6.0 * num_parameters + 12.0 * num_layers * width * length


def peak_flops(device_kind: str) -> float | None:
    """Peak FLOP/s of one device, or None where none is published (CPUs)."""
    return next((peak for name, peak in _PEAK_FLOPS.items() if name in device_kind), None)


_SIGN_OF_LIFE = 10.0  # seconds between two signs of it
_PATIENCE_SECONDS = 5.0


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# What the time left is estimated from: so many seconds, and what was done in them.
_RECENT_SECONDS = 60.0


class Progress:
    """A bar with ETA: one line that changes in a terminal, a line every few seconds in a file.

    `patient` shows nothing in the first few seconds: for work that is mostly over before.
    `unit` divides the counts, such as bytes in a megabyte.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        quiet: bool = False,
        patient: bool = False,
        unit: int = 1,
    ):
        self._total, self._unit = max(1, total), unit
        self._end, self._interval = ("\r", 0.2) if sys.stdout.isatty() else ("\n", 5.0)
        self._quiet, self._shown = quiet, time.monotonic() if patient else -math.inf
        self._patience = _PATIENCE_SECONDS if patient else 0.0
        self._any = False
        # When how much was done, of the last minute; what came before the first call is start-up.
        self._recent: collections.deque[tuple[float, int]] = collections.deque()

    def show(self, done: int, text: str) -> None:
        """`done` of the total, with `text` beside the bar."""
        now = time.monotonic()
        self._remember(now, done)
        wait = max(self._interval, self._patience)
        if self._quiet or (now - self._shown < wait and (done < self._total or self._patience)):
            return
        self._shown, self._any, self._patience = now, True, 0.0
        filled = round(20 * min(1.0, done / self._total))
        bar = "#" * filled + "-" * (20 - filled)
        line = f"[{bar}] {self._count(done)}/{self._count(self._total)}  {text}{self._eta(done)}"
        print(line.ljust(100) if self._end == "\r" else line, end=self._end, flush=True)

    def _remember(self, now: float, done: int) -> None:
        self._recent.append((now, done))
        while len(self._recent) > 2 and self._recent[1][0] < now - _RECENT_SECONDS:
            self._recent.popleft()

    def _eta(self, done: int) -> str:
        """At the rate of the last minute; nothing before there is a rate."""
        (then, before), (now, _) = self._recent[0], self._recent[-1]
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
    """Says what start-up is doing, every 10 seconds that it still does, and how long it took."""
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
    """A line every 10 seconds, apart from the output, for work whose end is not known."""
    start = time.monotonic()

    def say() -> None:
        print(f"  {what}: {duration(time.monotonic() - start)} so far", file=sys.stderr, flush=True)

    with every(_SIGN_OF_LIFE, say):
        yield


@contextmanager
def every(seconds: float, say: Callable[[], None]) -> Iterator[None]:
    """Calls `say` from a thread of its own as long as the block takes."""
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


def of_a_step(facts: dict[str, Any]) -> bool:
    return type(facts.get("step")) is int


def whole_lines(
    content: bytes | None, ours: Callable[[dict[str, Any]], bool] = of_a_step
) -> Iterator[tuple[dict[str, Any], str]]:
    """(object, line) of each line of a JSON lines file that is `ours`. Lines that a kill or a crash
    has torn, a disk has changed, or somebody has added are left out."""
    for line in (content or b"").decode(errors="replace").splitlines():
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and ours(facts):
                yield facts, f"{line}\n"


def logged_steps(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, whatever number of parts it is in (a bucket's)."""
    content = b"".join(storage.read_parts(epath.Path(workdir) / "metrics.jsonl"))
    return [facts for facts, _ in whole_lines(content)]


class MetricsLog:
    """`metrics.jsonl` and TensorBoard events of a run; lines after `resume_step` are dropped.

    A killed run may have logged steps after its last checkpoint. They are computed again, bit for
    bit, so the file is cut back to the checkpoint and holds every step once. In a bucket a line
    arrives within half a minute (`storage.appended`); no step waits for it.
    """

    def __init__(self, workdir: str | epath.Path, resume_step: int):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._workdir, path = str(workdir), epath.Path(workdir) / "metrics.jsonl"

        def up_to_resume_step(content: bytes) -> bytes:
            lines = [line for facts, line in whole_lines(content) if facts["step"] <= resume_step]
            return "".join(lines).encode()

        self._file = storage.append_to(path, up_to_resume_step)
        self._events: EventsOnDisk | EventsInBucket | None = None
        # Tells TensorBoard to drop what it has of later steps.
        start = SessionLog(status=SessionLog.START)
        self._add(Event(step=resume_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """One object in the file, one scalar for each number in TensorBoard.

        A full disk is reported, and is no reason to stop: lines wait for the next time, scalars of
        TensorBoard are lost.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if not isinstance(value, str)
        ]
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=scalars))
        line = json.dumps({"step": step, **values}) + "\n"
        with storage.tolerating("metrics.jsonl"):
            self._file.append(line.encode())
            self._add(event)

    def flush(self) -> None:
        """Asks for what a bucket has not yet been given to be uploaded, without waiting for it."""
        self._file.flush()
        if self._events is not None:
            self._events.flush()

    def _add(self, event: Any) -> None:
        if self._events is None:
            kind = EventsInBucket if storage.in_bucket(self._workdir) else EventsOnDisk
            self._events = kind(self._workdir)
        try:
            self._events.add_event(event)
        except Exception:
            self._events = None  # it takes no more: the next one gets a new file
            raise

    def close(self) -> None:
        with storage.tolerating("metrics.jsonl"):
            self._file.close()
        if self._events is not None:
            with storage.tolerating("TensorBoard events"):
                self._events.close()
