"""Experiment trackers: what receives the metrics of a training run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from etils import epath

from fire_lm import storage
from fire_lm.results.metrics_log import MetricsLines
from fire_lm.results.tensorboard_events import TensorBoardEvents


class Log(Protocol):
    """An open log of one start of a run.

    A method may raise any exception: the run reports it once and continues. What a method writes
    must not wait for a network.
    """

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Record the values of a step, of which all numbers are finite."""
        ...

    def flush(self) -> None:
        """Request that everything written so far reaches its destination, without waiting."""
        ...

    def close(self) -> None: ...


class Tracker(Protocol):
    """A setting of a run, `pretrain.trackers`, that opens a log of its metrics.

    `metrics.jsonl` and TensorBoard's events are always written. A tracker of your own is a frozen
    dataclass with these methods in a module that `--import` names. Once training has begun, an
    exception in it is reported and stops nothing.
    """

    def check(self) -> None:
        """Raise UserError before the run starts if the tracker cannot work on this machine."""
        ...

    def open(self, workdir: str, resume_step: int) -> Log:
        """Open the log of a start.

        Args:
          workdir: The run directory, local or gs://, which contains the configuration.
          resume_step: The step after which the run resumes, or 0. An earlier start may have logged
            later steps, which the run repeats bit for bit.
        """
        ...


class MetricsLog:
    """The logs of a start of a run: `metrics.jsonl`, TensorBoard's events, and its trackers.

    A log that fails is reported, and does not stop the run or the other logs.
    """

    def __init__(
        self, workdir: str | epath.Path, resume_step: int, trackers: Iterable[Tracker] = ()
    ):
        workdir = str(workdir)
        openers: list[tuple[str, Callable[[], Log]]] = [
            ("TensorBoard events", lambda: TensorBoardEvents(workdir, resume_step)),
            *(
                (type(tracker).__name__, functools.partial(tracker.open, workdir, resume_step))
                for tracker in trackers
            ),
        ]
        self._logs: list[tuple[str, Log]] = [("metrics.jsonl", MetricsLines(workdir, resume_step))]
        for name, opened in openers:
            with storage.tolerating(name):
                self._logs.append((name, opened()))

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Give the finite values of a step to all logs."""
        self._ask(lambda log: log.write(step, values))

    def flush(self) -> None:
        """Request the upload of all pending data, without waiting for the upload."""
        self._ask(lambda log: log.flush(), "pending data of ")

    def close(self) -> None:
        self._ask(lambda log: log.close())

    def _ask(self, request: Callable[[Log], None], what: str = "") -> None:
        for name, log in self._logs:
            with storage.tolerating(f"{what}{name}"):
                request(log)
