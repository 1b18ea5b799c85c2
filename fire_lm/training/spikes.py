"""The detection and handling of steps whose loss jumps or is not finite.

The limit above which an update is skipped is derived from the losses that the host has read. These
usually end two steps before, because the host dispatches each step before it reads the loss of the
previous step. They are stored with the counters of a checkpoint, so that a resumed run uses the
same limits as an uninterrupted run. There is one exception: before a save that SIGTERM or Ctrl-C
forces, the loss of the saved step is read as well, so the limit of the next step includes it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from typing import Any, TypeVar

from etils import epath

from fire_lm import storage
from fire_lm.errors import UserError
from fire_lm.results.metrics_log import whole_lines

_Array = TypeVar("_Array")

_WINDOW = 100  # the number of losses from which the limit is computed
_LEAST = 20  # the minimum number of earlier losses for a loss to count as a spike


@dataclasses.dataclass(frozen=True)
class Spikes:
    """The definition of a spike, and the number of updates that a run may skip.

    Every spike, and every step whose loss or gradient is not finite, is logged as a line of
    `spikes.jsonl` in the run directory.

    Attributes:
      deviations: A loss that exceeds the median of the last hundred losses by this many standard
        deviations is a spike, unless it is among the first 20. The standard deviation is estimated
        as 1.4826 times the median absolute deviation, which is robust to spikes.
      skips_allowed: The number of updates that may be skipped in the whole run because the loss or
        gradient is not finite; one more such update stops the run. With 0, the first such update
        stops the run.
      skip_finite: Whether to also skip the updates of spikes with a finite loss. These updates
        count towards `skips_allowed`.
    """

    deviations: float = 10.0
    skips_allowed: int = 0
    skip_finite: bool = False

    def __post_init__(self) -> None:
        if self.skips_allowed < 0 or not self.deviations > 0:
            raise UserError(
                f"Spikes.skips_allowed must be 0 or more (it is {self.skips_allowed}), and "
                f"Spikes.deviations must be more than 0 (it is {self.deviations})"
            )
        if self.skip_finite and not self.skips_allowed:
            raise UserError(
                "Spikes.skip_finite needs a limit: set Spikes.skips_allowed to 1 or more"
            )

    def limit(self, losses: list[float]) -> float:
        """Return the loss, in nats per token, above which the step after `losses` is a spike."""
        if len(losses) < _LEAST:
            return math.inf
        middle = statistics.median(losses)
        deviation = 1.4826 * statistics.median(abs(loss - middle) for loss in losses)
        return middle + self.deviations * deviation

    def skip_above(self, losses: list[float]) -> float:
        """Return the loss above which the next update is skipped, if skips are allowed."""
        return self.limit(losses) if self.skip_finite else math.inf

    def guard(self, skip_above: _Array) -> tuple[_Array, ...]:
        """Return the arguments of the training step that follow the state and the batch.

        The result is () if no updates may be skipped.
        """
        return (skip_above,) if self.skips_allowed else ()


def remember(losses: list[float], loss: float) -> list[float]:
    """Return `losses` followed by `loss`, limited to the window of recent losses.

    The result is a new list, because a checkpoint that is still being written may refer to the old
    list.
    """
    return [*losses, loss][-_WINDOW:]


def stopped_at(workdir: str | epath.Path) -> int | None:
    """Return the step at which a run stopped because of its loss or gradient, or None."""
    content = storage.read_bytes(_file(workdir))
    lines = [facts for facts, _ in whole_lines(content)]
    return int(lines[-1]["step"]) if lines and lines[-1].get("stopped") else None


class SpikeLog:
    """The log of spikes, `spikes.jsonl`.

    As in the metrics log, the lines of steps after `resume_step` are dropped.
    """

    def __init__(self, workdir: str | epath.Path, resume_step: int):
        self._path, self._resume_step = _file(workdir), resume_step
        self._log: storage.Appended | None = None
        if storage.read_bytes(self._path) is not None:
            self._open()

    def add(self, facts: Mapping[str, Any]) -> None:
        """Append `facts` as a line; NaN and infinities become strings, because JSON lacks them."""
        words = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in facts.items()
        }
        with storage.tolerating(self._path.name):
            self._open().append(f"{json.dumps(words)}\n".encode())

    def close(self) -> None:
        if self._log is not None:
            with storage.tolerating(self._path.name):
                self._log.close()

    def _open(self) -> storage.Appended:
        if self._log is None:
            self._log = storage.append_to(self._path, self._up_to_resume_step, in_parts=False)
        return self._log

    def _up_to_resume_step(self, content: bytes) -> bytes:
        lines = whole_lines(content)
        return "".join(line for facts, line in lines if facts["step"] <= self._resume_step).encode()


def _file(workdir: str | epath.Path) -> epath.Path:
    return epath.Path(workdir) / "spikes.jsonl"
