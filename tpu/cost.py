"""What jobs cost, before they start and so far: hours, chip-hours and, given a price, dollars."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from fire_lm.console import columns
from tpu.cluster import slice_of

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment
    from fire_lm.preflight.step_time import StepTime

_MORE = "input, checkpoints, scoring and preemptions add to it"


@dataclasses.dataclass(frozen=True)
class Training:
    """The expected cost of all steps of a training run.

    Attributes:
      steps: The number of steps.
      step: The expected time of a step.
      chips: The number of chips.
      price: The price of a chip-hour in dollars, or 0 if it is unknown.
    """

    steps: int
    step: StepTime
    chips: int
    price: float = 0.0

    @property
    def hours(self) -> float:
        return self.steps * self.step.seconds / 3600

    @property
    def chip_hours(self) -> float:
        return self.hours * self.chips

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps x {_milliseconds(self.step)} = {_rounded(self.hours)} h on "
            f"{self.chips} chips = {in_words(self.chip_hours, self.price)} "
            f"(step time: {self.step.source}; {_MORE})"
        )


def of_training(config: Experiment, where: ConfigDict) -> Training:
    """Return the expected cost of a training run on a cluster."""
    from fire_lm.preflight.step_time import expected_step_time

    run, slices = config.train, slice_of(where)
    step = expected_step_time(run, slices)
    return Training(run.train_steps, step, slices.chips, where.price_per_chip_hour)


@dataclasses.dataclass(frozen=True)
class Scoring:
    """The expected cost of scoring one checkpoint of a run, or some of the examples of a task.

    Attributes:
      time: The expected time of one unit.
      count: The number of units.
      each: What the units are, such as "per checkpoint".
      chips, price: See `Training`.
      rest: What adds to the cost.
    """

    time: StepTime
    count: int
    each: str
    chips: int
    price: float
    rest: str

    def __str__(self) -> str:
        chip_hours = self.count * self.time.seconds / 3600 * self.chips
        return (
            f"{in_words(chip_hours, self.price)} {self.each} on {self.chips} chips (an estimate "
            f"from FLOPs, {self.time.source}; {self.rest})"
        )


def of_sweep(config: Experiment, where: ConfigDict, settings: int = 1) -> Scoring:
    """Return the expected cost of a length sweep with a number of settings (`--also`)."""
    from fire_lm.preflight.step_time import expected_sweep_time  # imports JAX

    sweep, slices = config.sweep, slice_of(where)
    time = expected_sweep_time(sweep, slices)
    rest = "start-up, compiling and reading add to it"
    price = where.price_per_chip_hour
    return Scoring(time, settings, "per checkpoint", slices.chips, price, rest)


def of_evaluation(config: Experiment, where: ConfigDict, settings: int = 1) -> Scoring:
    """Return the expected cost of reading the examples of a downstream task."""
    from fire_lm.preflight.step_time import expected_reading_time  # imports JAX

    asked, slices = config.task, slice_of(where)
    time = expected_reading_time(config.model, asked, slices)
    rest = "start-up, compiling and, above all, decoding add to it"
    each = "per checkpoint and 1,000 examples"
    price = where.price_per_chip_hour
    return Scoring(time, 1000 * settings, each, slices.chips, price, rest)


def table(costs: Mapping[str, Training]) -> str:
    """Return a table with a row for each arm of a grid, and the total."""
    arms = list(costs.values())
    total, hours = sum(arm.chip_hours for arm in arms), sum(arm.hours for arm in arms)
    price = arms[0].price
    header = ["arm", "steps", "step", "hours", "chip-hours", "dollars", "step time"]
    rows = [
        [
            name,
            f"{arm.steps:,}",
            _milliseconds(arm.step),
            *_amounts(arm.hours, arm.chip_hours, price),
        ]
        + [arm.step.source]
        for name, arm in costs.items()
    ]
    rows.append(["total", "", "", *_amounts(hours, total, price), _MORE])
    if not price:
        header, rows = _without_dollars(header), [_without_dollars(row) for row in rows]
    return "\n".join(columns([header, *rows]))


def in_words(chip_hours: float, price: float) -> str:
    """Return chip-hours, and their price in dollars if it is known."""
    cost = f", ${_rounded(chip_hours * price)} at ${price:g} per chip-hour" if price else ""
    return f"{_rounded(chip_hours)} chip-hours{cost}"


def _amounts(hours: float, chip_hours: float, price: float) -> list[str]:
    return [_rounded(amount) for amount in (hours, chip_hours, chip_hours * price)]


def _rounded(amount: float) -> str:
    if amount < 1:
        return f"{amount:.2g}"
    return f"{amount:,.1f}" if amount < 100 else f"{amount:,.0f}"


def _without_dollars(row: list[str]) -> list[str]:
    return [*row[:5], *row[6:]]


def _milliseconds(step: StepTime) -> str:
    return f"{_rounded(1e3 * step.seconds)} ms"
