"""Length schedules: how many tokens the rows of each step have.

Data yields rows of the longest length in its usual order, whatever the schedule, and a step cuts
them into consecutive rows of its own length. A step therefore has the same tokens of text at every
length, the position in the data is that of a run at the longest length, and nothing is lost or
repeated at a change, on any number of hosts. SkyLadder (arXiv:2503.15450) also splits rows of a
constant length for the steps at shorter lengths, by masks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fire_lm.errors import UserError

# Entries (start, length): the number of steps before the first at this length, or the share of the
# run's steps; and the length, or several of which each step draws one.
Entries = Sequence[tuple[int | float, int | tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Phase:
    """Consecutive steps at one length or, with several lengths, at one that each step draws.

    Attributes:
      start: The number of steps before the phase.
      stop: The last step of the phase, which is `start` if the run ends before it.
      lengths: The lengths in tokens, in the order in which they are listed.
    """

    start: int
    stop: int
    lengths: tuple[int, ...]

    @property
    def steps(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        if len(self.lengths) == 1:
            return str(self.lengths[0])
        return f"{', '.join(map(str, self.lengths[:-1]))} or {self.lengths[-1]} by step"


@dataclasses.dataclass(frozen=True)
class LengthSchedule:
    """The lengths of the rows of every step of a run; steps are counted from 1.

    Attributes:
      phases: The phases in order, of which the last may begin after the end of the run.
      seed: The seed of the run, which determines lengths that are drawn.
    """

    phases: tuple[Phase, ...]
    seed: int = 0

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """The different lengths, in increasing order, whether or not the run reaches them."""
        return tuple(sorted({length for phase in self.phases for length in phase.lengths}))

    @property
    def longest(self) -> int:
        """The number of tokens in the rows that data yields."""
        return self.lengths[-1]

    @property
    def first(self) -> int:
        """The length of the first step or, if it is drawn, the length that is listed first."""
        return self.phases[0].lengths[0]

    @property
    def constant(self) -> bool:
        return len(self.lengths) == 1

    def at(self, step: int) -> int:
        """Return the length of the rows in a step, which is the same in all processes."""
        lengths = self.phase_of(step).lengths
        if len(lengths) == 1:
            return lengths[0]
        return sorted(lengths)[np.random.default_rng([self.seed, step]).integers(len(lengths))]

    def phase_of(self, step: int) -> Phase:
        """Return the phase of a step, which is the last one after the end of the run."""
        own = (phase for phase in self.phases if phase.start < step <= phase.stop)
        return next(own, self.phases[-1])

    def after(self, step: int) -> tuple[int, ...]:
        """Return the lengths that rows can have after a step of the run, in increasing order."""
        later = (phase.lengths for phase in self.phases if phase.steps and phase.stop > step)
        return tuple(sorted({length for lengths in later for length in lengths}))

    def shares(self, train_steps: int) -> dict[int, float]:
        """Return the share of the steps at each length; of drawn lengths, the expected share."""
        steps = dict.fromkeys(self.lengths, 0.0)
        for phase in self.phases:
            for length in phase.lengths:
                steps[length] += phase.steps / len(phase.lengths)
        return {length: count / train_steps for length, count in steps.items()}

    def __str__(self) -> str:
        return ", then ".join(map(str, self.phases))


def length_schedule(entries: Entries, train_steps: int, seed: int) -> LengthSchedule:
    """Return the schedule that TRAIN_LENGTHS describes for a run of `train_steps` steps.

    Raises:
      UserError: An entry is invalid, the entries are not in order, or a length does not divide the
        longest.
    """
    starts = [_steps_before(start, train_steps) for start, _ in entries]
    if not starts or starts[0] or sorted(set(starts)) != starts:
        raise UserError(
            f"TRAIN_LENGTHS has entries that begin after {', '.join(map(str, starts))} steps: the "
            "first must begin at 0, and each later one after more steps than the one before"
        )
    stops = [min(start, train_steps) for start in [*starts[1:], train_steps]]
    phases = tuple(
        Phase(start, max(start, stop), _lengths(length))
        for start, stop, (_, length) in zip(starts, stops, entries, strict=True)
    )
    schedule = LengthSchedule(phases, seed)
    for length in schedule.lengths:
        if schedule.longest % length:
            raise UserError(
                f"TRAIN_LENGTHS has the lengths {length} and {schedule.longest}: every length must "
                "divide the longest, whose rows are cut into shorter ones"
            )
    return schedule


def in_words(entries: Entries) -> str:
    """Return, for example, "64, then 256 after 95 %", or "64, then 256 after step 900"."""
    parts = []
    for start, length in entries:
        lengths = " or ".join(map(str, _lengths(length)))
        after = f"{100 * start:g} %" if 0 < start < 1 else f"step {int(start)}"
        parts.append(f"{lengths} after {after}" if start else lengths)
    return ", then ".join(parts)


def trained_length(settings: Mapping[str, Any]) -> int:
    """Return the longest length that a run reaches, by its settings; 0 if there are none."""
    if entries := settings.get("train_lengths"):
        return length_schedule(entries, settings["train_steps"], 0).after(0)[-1]
    return int(settings.get("train_length") or 0)


def _steps_before(start: int | float, train_steps: int) -> int:
    """Return the number of steps before an entry; a number below 1 is a share of the run."""
    if 0 < start < 1:
        return round(start * train_steps)
    unclear = start == 1 and isinstance(start, float)  # a step, or all of them
    if unclear or not 0 <= start < math.inf or start != int(start):
        raise UserError(
            f"TRAIN_LENGTHS has an entry that begins at {start}: it must be a number of steps, or "
            "a share of the run between 0 and 1"
        )
    return int(start)


def _lengths(length: int | tuple[int, ...]) -> tuple[int, ...]:
    lengths = length if isinstance(length, tuple) else (length,)
    if not lengths or min(lengths) < 2 or len(set(lengths)) < len(lengths):
        raise UserError(
            f"TRAIN_LENGTHS has the length {length}: it must be 2 or more, or several such numbers "
            "that differ"
        )
    return lengths
