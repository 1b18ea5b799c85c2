"""The handling of bad steps: a loss that is not finite, or that jumps.

The limit of a step is derived from the losses up to two steps before it, because the host works
one step ahead of the losses that it reads. Those losses are stored with the counters of a
checkpoint, so that a resumed run judges as an uninterrupted one does.
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

_WINDOW = 100  # the number of losses that define what is usual
_LEAST = 20  # the number of losses before anything counts as a spike


@dataclasses.dataclass(frozen=True)
class Spikes:
    """When a loss counts as a spike, and how many updates a run may skip.

    Every spike becomes a line of `spikes.jsonl` in the run directory.

    Attributes:
      deviations: A spike is this many standard deviations above the median of the last hundred
        losses. The deviation is 1.4826 times the median absolute deviation, which is robust to
        spikes.
      skips_allowed: The number of updates that may be skipped in the whole run because the loss or
        gradient is not finite; the next one stops the run. 0 stops at the first.
      skip_finite: Whether to skip the updates of finite spikes too; they count as well.
    """

    deviations: float = 10.0
    skips_allowed: int = 0
    skip_finite: bool = False

    def __post_init__(self) -> None:
        if self.skips_allowed < 0 or not self.deviations > 0:
            raise UserError(
                f"Spikes: skips_allowed is {self.skips_allowed} and deviations {self.deviations}; "
                "they must be 0 or more, and more than 0"
            )
        if self.skip_finite and not self.skips_allowed:
            raise UserError(
                "Spikes.skip_finite needs Spikes.skips_allowed, the largest number of skips"
            )

    def limit(self, losses: list[float]) -> float:
        """Return the loss, in nats per token, above which the step after these is a spike."""
        if len(losses) < _LEAST:
            return math.inf
        middle = statistics.median(losses)
        deviation = 1.4826 * statistics.median(abs(loss - middle) for loss in losses)
        return middle + self.deviations * deviation

    def skip_above(self, losses: list[float]) -> float:
        """Return the loss above which the next update is skipped, if any may be (see `guard`)."""
        return self.limit(losses) if self.skip_finite else math.inf

    def guard(self, skip_above: _Array) -> tuple[_Array, ...]:
        """Return the training step's arguments besides state and batch; () if it need not judge."""
        return (skip_above,) if self.skips_allowed else ()


def remember(losses: list[float], loss: float) -> list[float]:
    """Return a new list, because a checkpoint that is still being written may hold the old one."""
    return [*losses, loss][-_WINDOW:]


def stopped_at(workdir: str | epath.Path) -> int | None:
    """Return the step at which a run stopped because a loss was not finite, or None."""
    content = storage.read_bytes(_file(workdir))
    lines = [facts for facts, _ in whole_lines(content)]
    return int(lines[-1]["step"]) if lines and lines[-1].get("stopped") else None


class SpikeLog:
    """The file `spikes.jsonl`; as in the metrics, lines after `resume_step` are dropped."""

    def __init__(self, workdir: str | epath.Path, resume_step: int):
        self._path, self._resume_step = _file(workdir), resume_step
        self._log: storage.Appended | None = None
        if storage.read_bytes(self._path) is not None:
            self._open()

    def add(self, facts: Mapping[str, Any]) -> None:
        """Append plain numbers; NaN and infinities are written as words, as JSON has none."""
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
        found = whole_lines(content)
        return "".join(line for facts, line in found if facts["step"] <= self._resume_step).encode()


def _file(workdir: str | epath.Path) -> epath.Path:
    return epath.Path(workdir) / "spikes.jsonl"
