"""Runs that differ by their seed alone as one line of a figure: mean and spread."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

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
    """Over runs that differ by their seed.

    Attributes:
      value: the mean.
      spread: standard deviation over the runs; None of a single one.
      runs: how many.
      text_error: standard error over text, of the first of them.
    """

    value: float
    spread: float | None
    runs: int
    text_error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Line:
    """An arm's loss at each length.

    Attributes:
      name: the arm, and its variant in parentheses.
      arm, variant: the change at evaluation is empty for none.
      encoding: of the arm.
      train_length: tokens.
      nats, bits: per token and per byte, by length in tokens; none where there is no number.
    """

    name: str
    arm: str
    variant: str
    encoding: str
    train_length: int
    nats: dict[int, Mean]
    bits: dict[int, Mean]

    def losses(self, nats: bool) -> dict[int, Mean]:
        return self.nats if nats else self.bits


def mean(values: Sequence[float], text_error: float = 0.0) -> Mean:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), spread, len(values), text_error)


def scored_in(row: SweepRow) -> Scored:
    return Scored(row.dataset, row.split, row.construction, row.protocol)


def line_name(arm: str, variant: str) -> str:
    return f"{arm} ({variant})" if variant else arm


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
            # By bits: of one vocabulary that is the order of nats, too.
            key=lambda line: (-max(line.bits), line.bits[max(line.bits)].value),
        )
        for scored, lines in groups.items()
    }


def _line(arm: str, variant: str, rows: Sequence[SweepRow], facts: dict[str, RunFacts]) -> Line:
    by_length = sorted(_grouped(rows, lambda row: row.length).items())
    first = facts[rows[0].run]
    return Line(
        name=line_name(arm, variant),
        arm=arm,
        variant=variant,
        encoding=first.encoding,
        train_length=first.train_length,
        nats={n: mean([row.nll for row in some], some[0].nll_stderr) for n, some in by_length},
        bits={
            n: mean(
                [row.bits_per_byte for row in some],
                some[0].nll_stderr * some[0].tokens / max(1, some[0].bytes) / math.log(2),
            )
            for n, some in by_length
        },
    )


def position_lines(results: Results) -> dict[str, dict[str, list[tuple[float, Mean]]]]:
    """By text: for each arm (and variant), its loss at the middle of each bin of positions.

    Another number of tokens is another text, or another vocabulary, whose nats are others.
    """
    arm = {run.run: run.arm for run in results.runs}
    tokens: dict[tuple[object, ...], int] = {}
    for row in results.positions:
        tokens[row.key] = tokens.get(row.key, 0) + row.tokens
    found: dict[str, dict[str, list[PositionLoss]]] = {}
    for row in results.positions:
        if row.run in arm:
            text = (
                f"{row.dataset} {row.split}, {row.construction}, length {row.length}, "
                f"{tokens[row.key]:,} tokens"
            )
            name = line_name(arm[row.run], row.variant)
            found.setdefault(text, {}).setdefault(name, []).append(row)
    return {
        text: drawable
        for text, lines in found.items()
        if (drawable := {n: p for n, rows in sorted(lines.items()) if (p := _over_bins(rows))})
    }


def _over_bins(rows: Sequence[PositionLoss]) -> list[tuple[float, Mean]]:
    """Bins that all of the runs have: others would be means over other runs."""
    bins = _grouped(rows, lambda row: (row.first, row.last))
    runs = {row.run for row in rows}
    return [
        ((first + last) / 2, mean([row.nll for row in some], some[0].nll_stderr))
        for (first, last), some in sorted(bins.items())
        if {row.run for row in some} == runs and all(math.isfinite(row.nll) for row in some)
    ]


def training_lines(results: Results) -> list[dict[str, list[tuple[float, Mean]]]]:
    """Each arm's training loss by tokens, at the steps that all of its runs have come to.

    Apart for each text and vocabulary, whose nats are others.
    """
    arm = {run.run: run.arm for run in results.runs}
    points: dict[str, list[TrainingPoint]] = {}
    for point in results.training:
        if point.run in arm:
            points.setdefault(arm[point.run], []).append(point)
    found: dict[object, dict[str, list[tuple[float, Mean]]]] = {}
    for name, of_arm in sorted(points.items()):
        runs = {point.run for point in of_arm}
        line = [
            (statistics.fmean(p.tokens for p in some), mean([p.loss for p in some]))
            for _, some in sorted(_grouped(of_arm, lambda point: point.step).items())
            if {p.run for p in some} == runs
        ]
        if line:
            found.setdefault(_text_of(results, min(runs)), {})[name] = line
    return list(found.values())


def _text_of(results: Results, run: str) -> object:
    """What a run was trained on, as far as runs differ in it."""
    data = next(facts.data for facts in results.runs if facts.run == run)
    settings = {s.name: s.value for s in results.settings if s.run == run}
    return data, settings.get("TextData.vocabulary"), settings.get("build_decoder.vocab_size")


def _grouped(rows: Iterable[_T], key: Callable[[_T], Any]) -> dict[Any, list[_T]]:
    found: dict[Any, list[_T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
