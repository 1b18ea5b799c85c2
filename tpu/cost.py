"""What jobs cost, before they start and so far: hours, chip-hours and, given a price, dollars."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from ml_collections import ConfigDict

from fire_lm.console import columns
from fire_lm.hardware.host import usable_cores
from tpu.cluster import slice_of

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment
    from fire_lm.preflight.step_time import StepTime

_MORE = "input, checkpoints, scoring and preemptions add to it"
# The share of the speed of matrix products that training of a small model reaches on a CPU: about
# that of the runs in docs/evidence/mini, on cores with the speed that docs/performance.md states.
_SHARE_HERE = 0.15


@dataclasses.dataclass(frozen=True)
class Training:
    """The expected cost of all steps of a training run.

    Attributes:
      chips: The number of chips, or 0 for this machine.
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
        step, hours = _rounded(1e3 * self.step.seconds), _rounded(self.hours)
        return (
            f"{self.steps:,} steps x {step} ms = {hours} h on {self.chips} chips = "
            f"{in_words(self.chip_hours, self.price)} "
            f"(step time: {self.step.source}; {_MORE}{_how_to_price(self.chips, self.price)})"
        )


def of_training(config: Experiment, where: ConfigDict) -> Training:
    """Return the expected cost of a training run on a cluster."""
    from fire_lm.preflight.step_time import expected_step_time

    run, slices = config.train, slice_of(where)
    step = expected_step_time(run, slices)
    return Training(run.train_steps, step, slices.chips, where.price_per_chip_hour)


def of_training_here(config: Experiment, at_once: int) -> Training | None:
    """Return the expected time of a training run on a share of this machine's cores.

    The result is None if JAX may use another device than the CPU, whose speed is unknown.
    """
    import jax

    from fire_lm.hardware.absent_tpu import skip_absent_tpu
    from fire_lm.preflight.step_time import StepTime

    skip_absent_tpu()
    if jax.config.values["jax_platforms"] != "cpu":
        return None
    run, flops = config.train, _flops_of_products()
    source = f"assuming {_SHARE_HERE:.0%} of the {flops / 1e9:.0f} GFLOP/s of matrix products here"
    seconds = run.flops_per_token * run.tokens_per_step * at_once / (_SHARE_HERE * flops)
    return Training(run.train_steps, StepTime(seconds, source), chips=0)


@functools.cache
def _flops_of_products() -> float:
    """Return the FLOP/s at which NumPy multiplies matrices on all cores of this process.

    CPU time is measured, so that other work on the cores makes no difference.
    """
    size = 512
    square, times = np.ones((size, size), np.float32), []
    for _ in range(10):
        began = time.process_time()
        square @ square
        times.append(time.process_time() - began)
    return 2 * size**3 / min(times) * len(usable_cores() or [1])


def of_sweep(config: Experiment, where: ConfigDict, settings: int = 1) -> str:
    """Describe the expected cost of a length sweep with a number of settings (`--also`)."""
    from fire_lm.preflight.step_time import expected_sweep_time  # imports JAX

    time = expected_sweep_time(config.sweep, slice_of(where))
    rest = "start-up, compiling and reading add to it"
    return _of_scoring(time, settings, "per checkpoint", where, rest)


def of_evaluation(config: Experiment, where: ConfigDict, settings: int = 1) -> str:
    """Describe the expected cost of reading the examples of a downstream task."""
    from fire_lm.preflight.step_time import expected_reading_time  # imports JAX

    time = expected_reading_time(config.model, config.task, slice_of(where))
    rest = "start-up, compiling and, above all, decoding add to it"
    return _of_scoring(time, 1000 * settings, "per checkpoint and 1,000 examples", where, rest)


def _of_scoring(time: StepTime, count: int, each: str, where: ConfigDict, rest: str) -> str:
    """Describe the cost of `count` units, each of which takes `time`; `rest` adds to the cost."""
    chips, price = slice_of(where).chips, where.price_per_chip_hour
    return (
        f"{in_words(count * time.seconds / 3600 * chips, price)} {each} on {chips} chips (an "
        f"estimate from FLOPs, {time.source}; {rest}{_how_to_price(chips, price)})"
    )


def table(costs: Mapping[str, Training], at_once: int) -> str:
    """Return a table with a row for each arm of a grid, and the total."""
    arms = list(costs.values())
    # On this machine there are no chip-hours, and without a price no dollars.
    shown = 1 + bool(arms[0].chips) + bool(arms[0].price)
    header = ["arm", "steps", "step", *("hours", "chip-hours", "dollars")[:shown], "step time"]
    rows = [
        [
            *(name, f"{arm.steps:,}"),
            f"{_rounded(1e3 * arm.step.seconds)} ms",
            *map(_rounded, (arm.hours, arm.chip_hours, arm.chip_hours * arm.price)[:shown]),
            arm.step.source,
        ]
        for name, arm in costs.items()
    ]
    return "\n".join([*columns([header, *rows]), total(costs, at_once)])


def total(costs: Mapping[str, Training], at_once: int) -> str:
    """Return the line with the cost of all arms of a grid, of which some run at a time."""
    arms = list(costs.values())
    ends = [0.0] * min(at_once, len(arms))  # of the arms that run side by side
    for arm in arms:
        heapq.heapreplace(ends, ends[0] + arm.hours)
    hours = f"{len(arms)} arms, {len(ends)} at a time: {_rounded(max(ends))} h"
    chip_hours, price = sum(arm.chip_hours for arm in arms), arms[0].price
    cost = f" = {in_words(chip_hours, price)}" if chip_hours else ""
    return f"{hours}{cost} ({_MORE}{_how_to_price(arms[0].chips, price)})"


def unknown(why: str, where: ConfigDict) -> str:
    """Return a line that says why the cost is unknown, and how to make it known."""
    return (
        f"the cost is unknown: {why}; `fire-lm preflight --slice={where.accelerator}` with the gin "
        "files of the run estimates the time"
    )


def in_words(chip_hours: float, price: float) -> str:
    """Return chip-hours, and their price in dollars if it is known."""
    cost = f", ${_rounded(chip_hours * price)} at ${price:g} per chip-hour" if price else ""
    return f"{_rounded(chip_hours)} chip-hours{cost}"


def _rounded(amount: float) -> str:
    if amount < 1:
        return f"{amount:.2g}"
    return f"{amount:,.1f}" if amount < 100 else f"{amount:,.0f}"


def _how_to_price(chips: int, price: float) -> str:
    return "" if price or not chips else "; --cluster.price_per_chip_hour=DOLLARS adds dollars"
