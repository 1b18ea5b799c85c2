"""Lines of means and spreads over runs that differ only in their seeds."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fire_lm.reporting.differences import Sample
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.scored_text import UNKNOWN, Texts, text_name
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import PositionLoss, TrainingPoint

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Scored:
    """The name of a scored text and the scoring protocol.

    Losses with different values of `Scored` are shown in different panels and tables.
    """

    dataset: str
    split: str
    construction: str
    protocol: str

    def __str__(self) -> str:
        protocol = "" if self.protocol == "full" else f", {self.protocol}"
        return f"{self.dataset} {self.split}, {self.construction}{protocol}"


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean of a value over runs that differ only in their seeds.

    Attributes:
      value: The mean.
      spread: The standard deviation over the runs; None for a single run.
      runs: The number of runs.
      text_error: The standard error over the text or the examples, averaged over the runs.
      by_run: The value of each run, by its name; {} if not needed.
    """

    value: float
    spread: float | None
    runs: int
    text_error: float = 0.0
    by_run: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def sample(self) -> Sample:
        """The values for tests of differences, without rows of text."""
        error = None if math.isnan(self.text_error) else self.text_error
        return Sample(self.by_run, error=error)


@dataclasses.dataclass(frozen=True)
class RowsOfText:
    """The losses of the rows of a text, for paired differences of two lines.

    Attributes:
      tokens_R: The number of tokens in each row.
      nll_R: For each run, the loss of each row in nats, summed over its tokens.
    """

    tokens_R: np.ndarray
    nll_R: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Line:
    """The losses of an arm on one text at each length.

    Attributes:
      name: The name of the arm, followed in parentheses by its variant and, if the lines of a
        figure have different texts, by the text, and by the step if the runs of the arm have no
        common step.
      arm: The name of the arm.
      variant: The change to the model at evaluation, or "".
      encoding: The encoding of the arm.
      train_length: The training length in tokens.
      nats: The losses in nats per token, by length in tokens.
      bits: The losses in bits per byte, by length in tokens.
      text: The hash of the text, or `UNKNOWN` if it is not recorded.
      rows: The losses of each row of the text, by length; {} if they are not recorded.
      gaps: The lengths for which the text is too short to form a row.
      step: The step of the checkpoints.
    """

    name: str
    arm: str
    variant: str
    encoding: str
    train_length: int
    nats: dict[int, Mean]
    bits: dict[int, Mean]
    text: str = UNKNOWN
    rows: dict[int, RowsOfText] = dataclasses.field(default_factory=dict)
    gaps: frozenset[int] = frozenset()
    step: int = 0

    def losses(self, nats: bool) -> dict[int, Mean]:
        return self.nats if nats else self.bits

    def sample(self, length: int, nats: bool) -> Sample:
        """Return the losses at a length for tests of differences.

        The rows of text are known only in nats, because a row has no number of bytes.
        """
        rows, values = self.rows.get(length), self.losses(nats)[length].by_run
        if rows is None or not nats:
            return Sample(values)
        return Sample(values, rows.tokens_R, rows.nll_R, text=self.text)


def mean(
    values: Sequence[float], text_errors: Sequence[float] = (0.0,), runs: Sequence[str] = ()
) -> Mean:
    spread = statistics.stdev(values) if len(values) > 1 else None
    by_run = dict(zip(runs, values, strict=True)) if runs else {}
    error = statistics.fmean(text_errors)
    return Mean(statistics.fmean(values), spread, len(values), error, by_run)


def scored_in(row: SweepRow) -> Scored:
    return Scored(row.dataset, row.split, row.construction, row.protocol)


def line_name(arm: str, variant: str) -> str:
    return f"{arm} ({variant})" if variant else arm


def at_step(name: str, step: int, several: bool) -> str:
    """Return the name of a line, which contains the step if there are lines for several steps."""
    return f"{name}, step {step}" if several else name


def loss_lines(results: Results) -> dict[Scored, list[Line]]:
    """Return, for each `Scored`, the lines of its arms and variants.

    The lines are sorted by their longest length, in descending order, and then by the loss at that
    length. Each line belongs to one text and one step, so runs of an arm that were scored on
    different texts or at different steps form separate lines.
    """
    facts = {run.run: run for run in results.runs}
    groups: dict[Scored, dict[_KeyOfLine, list[SweepRow]]] = {}
    gaps: dict[tuple[Scored, str, str], set[int]] = {}
    for row in results.losses:
        if row.run in facts and not row.tokens:  # the text was too short for a row of that length
            key_of_gap = (scored_in(row), facts[row.run].arm, row.variant)
            gaps.setdefault(key_of_gap, set()).add(row.length)
        elif row.run in facts:
            of_scored = groups.setdefault(scored_in(row), {})
            key = _KeyOfLine(facts[row.run].arm, row.variant, results.texts.of(row), row.step)
            of_scored.setdefault(key, []).append(row)
    found = {}
    for scored, groups_of in groups.items():
        lines = [
            _line(key, rows, facts[rows[0].run], results.texts, list(groups_of))
            for key, rows in groups_of.items()
        ]
        lines = [
            dataclasses.replace(line, gaps=frozenset(missing - set(line.nats)))
            if (missing := gaps.get((scored, line.arm, line.variant)))
            else line
            for line in lines
        ]
        # With one vocabulary, the order by bits per byte is also the order by nats per token.
        found[scored] = sorted(
            lines, key=lambda line: (-max(line.bits), line.bits[max(line.bits)].value)
        )
    return found


class _KeyOfLine(NamedTuple):
    arm: str
    variant: str
    text: str
    step: int

    def name(self, others: Sequence[_KeyOfLine]) -> str:
        """Return the name of the line among all lines of a figure."""
        texts = {other.text for other in others}
        steps = {other.step for other in others if other[:2] == self[:2]}
        name = line_name(self.arm, self.variant)
        name += f" ({text_name(self.text)})" * (len(texts) > 1)
        return at_step(name, self.step, len(steps) > 1)


def _line(
    key: _KeyOfLine,
    rows: Sequence[SweepRow],
    first: RunFacts,
    texts: Texts,
    others: Sequence[_KeyOfLine],
) -> Line:
    by_length = sorted(_grouped(rows, lambda row: row.length).items())
    return Line(
        name=key.name(others),
        arm=key.arm,
        variant=key.variant,
        encoding=first.encoding,
        train_length=first.train_length,
        nats={
            n: mean(
                [row.nll for row in some],
                [row.nll_stderr for row in some],
                [row.run for row in some],
            )
            for n, some in by_length
        },
        bits={
            n: mean(
                [row.bits_per_byte for row in some],
                [row.nll_stderr * row.tokens / max(1, row.bytes) / math.log(2) for row in some],
                [row.run for row in some],
            )
            for n, some in by_length
        },
        text=key.text,
        step=key.step,
        rows={n: found for n, some in by_length if (found := _rows_of_text(some, texts))},
    )


def _rows_of_text(rows: Sequence[SweepRow], texts: Texts) -> RowsOfText | None:
    """Return the losses of the rows of text for each run.

    The result is None if the text of a seed is not recorded, or if the numbers of tokens in its
    rows differ between seeds.
    """
    lines = {row.run: line for row in rows if (line := texts.line(row))}
    first = next(iter(lines.values()), None)
    if first is None or len(lines) < len(rows):
        return None
    if not all(np.array_equal(line.tokens_R, first.tokens_R) for line in lines.values()):
        return None
    return RowsOfText(first.tokens_R, {run: line.nll_R for run, line in lines.items()})


def position_lines(results: Results) -> dict[str, dict[str, list[tuple[float, Mean]]]]:
    """Return, for each text, the losses of each arm and variant in bins of positions.

    A loss is preceded by the centre of its bin. Rows with different text hashes or numbers of
    tokens are kept apart, because their losses in nats are not comparable. Runs of an arm at
    different steps are separate lines.
    """
    arm = {run.run: run.arm for run in results.runs}
    tokens: dict[tuple[object, ...], int] = {}
    for row in results.positions:
        tokens[row.key] = tokens.get(row.key, 0) + row.tokens
    of = results.texts.of_all_positions(results.positions)
    texts: dict[str, set[str]] = {}
    for row in results.positions:
        texts.setdefault(_positions_of(row, tokens[row.key]), set()).add(of[row.key])
    found: dict[str, dict[str, list[PositionLoss]]] = {}
    for row in results.positions:
        if row.run in arm:
            text = _positions_of(row, tokens[row.key])
            if len(texts[text]) > 1 or of[row.key] == UNKNOWN:
                text = f"{text}, {text_name(of[row.key])}"
            name = line_name(arm[row.run], row.variant)
            found.setdefault(text, {}).setdefault(name, []).append(row)
    return {
        text: drawable
        for text, lines in found.items()
        if (drawable := {n: p for n, rows in _by_step(lines).items() if (p := _over_bins(rows))})
    }


def _by_step(lines: Mapping[str, Sequence[PositionLoss]]) -> dict[str, list[PositionLoss]]:
    """Return the rows of each line, which are several lines if they are of several steps."""
    return {
        at_step(name, step, len(steps) > 1): rows
        for name, all_rows in sorted(lines.items())
        for steps in [_grouped(all_rows, lambda row: row.step)]
        for step, rows in sorted(steps.items())
    }


def _positions_of(row: PositionLoss, tokens: int) -> str:
    return f"{row.dataset} {row.split}, {row.construction}, length {row.length}, {tokens:,} tokens"


def _over_bins(rows: Sequence[PositionLoss]) -> list[tuple[float, Mean]]:
    """Return the centre of each bin of positions, and the mean over runs in the bin.

    Bins without a finite loss for every run are omitted, because their means would be over fewer
    runs.
    """
    bins = _grouped(rows, lambda row: (row.first, row.last))
    runs = {row.run for row in rows}
    return [
        ((first + last) / 2, mean([row.nll for row in some], [row.nll_stderr for row in some]))
        for (first, last), some in sorted(bins.items())
        if {row.run for row in some} == runs and all(math.isfinite(row.nll) for row in some)
    ]


def training_lines(results: Results) -> list[dict[str, list[tuple[float, Mean]]]]:
    """Return each arm's training loss by tokens, at the steps that all of its runs have logged.

    There is a separate dict for each text and vocabulary, because their losses in nats are not
    comparable.
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
    """Return the training text, the vocabulary and the vocabulary size of a run.

    The vocabulary and its size are None if they are the same for all runs or are not set.
    """
    data = next(facts.data for facts in results.runs if facts.run == run)
    settings = {s.name: s.value for s in results.settings if s.run == run}
    return data, settings.get("TextData.vocabulary"), settings.get("build_decoder.vocab_size")


def _grouped(rows: Iterable[_T], key: Callable[[_T], Any]) -> dict[Any, list[_T]]:
    found: dict[Any, list[_T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
