"""Runs that differ by their seed alone as one line of a figure: mean and spread."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from fire_lm.reporting.result_files import PositionLoss, TrainingPoint
from fire_lm.reporting.results import Results, RunFacts
from fire_lm.reporting.sweep_rows import SweepRow

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Scored:
    """What was scored, and how: losses of different ones are not of one figure."""

    dataset: str
    split: str
    construction: str
    protocol: str

    def __str__(self) -> str:
        protocol = "" if self.protocol == "full" else f", {self.protocol}"
        return f"{self.dataset} {self.split}, {self.construction}{protocol}"


@dataclasses.dataclass(frozen=True)
class Mean:
    """Over the seeds of an arm.

    Attributes:
      value: the mean.
      error: standard deviation over seeds; of a single one, the standard error over its text.
      seeds: how many.
    """

    value: float
    error: float
    seeds: int


@dataclasses.dataclass(frozen=True)
class Line:
    """An arm's loss at each length.

    Attributes:
      name: the arm, and its variant in parentheses.
      variant: the change at evaluation; empty for none.
      train_length: tokens.
      nats, bits: per token and per byte, by length in tokens; none where there is no number.
    """

    name: str
    variant: str
    train_length: int
    nats: dict[int, Mean]
    bits: dict[int, Mean]


def mean(values: Sequence[float], error_of_one: float = 0.0) -> Mean:
    spread = statistics.stdev(values) if len(values) > 1 else error_of_one
    return Mean(statistics.fmean(values), spread, len(values))


def scored_in(row: SweepRow) -> Scored:
    return Scored(row.dataset, row.split, row.construction, row.protocol)


def loss_lines(results: Results) -> dict[Scored, list[Line]]:
    """The arms and variants scored on each text, best at the longest length first."""
    facts = {run.run: run for run in results.runs}
    groups: dict[Scored, dict[tuple[str, str], list[SweepRow]]] = {}
    for row in results.losses:
        if row.run in facts and row.tokens:  # else there was no text of that length
            of_scored = groups.setdefault(scored_in(row), {})
            of_scored.setdefault((facts[row.run].arm, row.variant), []).append(row)
    return {
        scored: sorted(
            (_line(arm, variant, rows, facts) for (arm, variant), rows in lines.items()),
            key=lambda line: (-max(line.nats), line.nats[max(line.nats)].value),
        )
        for scored, lines in groups.items()
    }


def _line(arm: str, variant: str, rows: Sequence[SweepRow], facts: dict[str, RunFacts]) -> Line:
    by_length = _grouped(rows, lambda row: row.length)
    bits_of_nat = {row: row.bits_per_byte / row.nll for row in rows}
    return Line(
        name=f"{arm} ({variant})" if variant else arm,
        variant=variant,
        train_length=facts[rows[0].run].train_length,
        nats={
            length: mean([row.nll for row in some], some[0].nll_stderr)
            for length, some in sorted(by_length.items())
        },
        bits={
            length: mean(
                [row.bits_per_byte for row in some], some[0].nll_stderr * bits_of_nat[some[0]]
            )
            for length, some in sorted(by_length.items())
        },
    )


def one_vocabulary(rows: Iterable[SweepRow]) -> bool:
    """Whether the same text has as many tokens for all of them: else nats cannot be compared."""
    ratios = [row.tokens / row.bytes for row in rows if row.bytes]
    return not ratios or max(ratios) <= 1.0001 * min(ratios)


def position_lines(results: Results) -> dict[str, dict[str, list[tuple[float, Mean]]]]:
    """By text: for each arm (and variant), its loss at the middle of each bin of positions."""
    arm = {run.run: run.arm for run in results.runs}
    found: dict[str, dict[str, list[PositionLoss]]] = {}
    for row in results.positions:
        if row.run in arm:
            text = f"{row.dataset} {row.split}, {row.construction}, length {row.length}"
            name = f"{arm[row.run]} ({row.variant})" if row.variant else arm[row.run]
            found.setdefault(text, {}).setdefault(name, []).append(row)
    return {
        text: {name: _over_bins(rows) for name, rows in sorted(lines.items())}
        for text, lines in found.items()
    }


def _over_bins(rows: Sequence[PositionLoss]) -> list[tuple[float, Mean]]:
    bins = _grouped(rows, lambda row: (row.first, row.last))
    return [
        ((first + last) / 2, mean([row.nll for row in some], some[0].nll_stderr))
        for (first, last), some in sorted(bins.items())
        if all(math.isfinite(row.nll) for row in some)
    ]


def training_lines(results: Results) -> dict[str, list[tuple[int, Mean]]]:
    """Each arm's training loss, by tokens."""
    arm = {run.run: run.arm for run in results.runs}
    lines: dict[str, list[TrainingPoint]] = {}
    for point in results.training:
        if point.run in arm:
            lines.setdefault(arm[point.run], []).append(point)
    return {
        name: [
            (tokens, mean([point.loss for point in some]))
            for tokens, some in sorted(_grouped(points, lambda point: point.tokens).items())
        ]
        for name, points in sorted(lines.items())
    }


def _grouped(rows: Iterable[_T], key: Callable[[_T], object]) -> dict:  # type: ignore[type-arg]
    found: dict[object, list[_T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
