"""Losses against length as series, and what is said of their text."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from fire_lm.reporting.differences import Sample
from fire_lm.reporting.series import Series, grouped, series_by_arm
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import UNKNOWN, Texts, text_name
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import LengthAccuracy


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


def scored_in(row: SweepRow) -> Scored:
    return Scored(row.dataset, row.split, row.construction, row.protocol)


def loss_lines(results: Results, nats: bool = True) -> dict[Scored, list[Series]]:
    """Return, for each `Scored`, the losses of its arms and variants by length.

    The series are sorted by their longest length, in descending order, and then by the loss at that
    length. Each series belongs to one text and one step, so runs of an arm that were scored on
    different texts or at different steps form separate series. Without `nats`, losses are in bits
    per byte.
    """
    facts, texts = {run.run: run for run in results.runs}, results.texts
    rows = [row for row in results.losses if row.run in facts]
    # Where the text is too short for a row of some length, a sweep leaves a row without tokens.
    gaps = grouped(
        (row for row in rows if not row.tokens),
        lambda row: (scored_in(row), facts[row.run].arm, row.variant),
    )

    def points(rows: Sequence[SweepRow]) -> dict[int, Sample]:
        by_length = sorted(grouped(rows, lambda row: row.length).items())
        return {length: _sample(own, texts, nats) for length, own in by_length}

    lines: dict[Scored, list[Series]] = {}
    for scored, own in grouped((row for row in rows if row.tokens), scored_in).items():
        series = sorted(series_by_arm(own, facts, points, texts.of, shown=rows), key=_rank)
        lines[scored] = []
        for one in series:
            empty = {row.length for row in gaps.get((scored, one.arm, one.variant), ())}
            missing = dict.fromkeys(empty - one.points.keys(), "no text")
            lines[scored].append(dataclasses.replace(one, missing=missing))
    return lines


def _rank(series: Series) -> tuple[int, float]:
    """Return a key that sorts series by their loss at the longest length, best first."""
    longest = max(series.points)
    return -longest, series.points[longest].mean


def _sample(rows: Sequence[SweepRow], texts: Texts, nats: bool) -> Sample:
    """Return the losses of runs at a length, with those of each row of text if all runs have them.

    The rows of text are left out if their numbers of tokens differ between seeds.
    """
    # The number of bytes in a row of text is not recorded, so it counts as that of its tokens.
    units = {row.run: 1.0 if nats else row.tokens / max(1, row.bytes) / math.log(2) for row in rows}
    values = {row.run: row.nll if nats else row.bits_per_byte for row in rows}
    error = statistics.fmean(row.nll_stderr * units[row.run] for row in rows)
    plain = Sample(values, error=error, text=texts.of(rows[0]), common_text=True)
    lines = {row.run: line for row in rows if (line := texts.line(row))}
    tokens = [line.tokens_R for line in lines.values()]
    if len(lines) < len(rows) or not all(np.array_equal(own, tokens[0]) for own in tokens):
        return plain
    sums = {run: units[run] * line.nll_R for run, line in lines.items()}
    return dataclasses.replace(plain, tokens_R=tokens[0], sums_R=sums)


def differences(rows: Iterable[SweepRow], texts: Texts) -> str:
    """Return the difference that makes nats per token of rows of one `Scored` incomparable, or "".

    Losses per token are comparable only for the same text with the same tokenization. Rows with a
    recorded text are compared by that text, other rows by their numbers of tokens and bytes.
    """
    scored = [row for row in rows if row.tokens]
    if len(scored_texts := {texts.of(row) for row in scored}) > 1:
        return "texts or vocabularies"
    amounts = {(row.tokens, row.bytes) for row in scored}
    if scored_texts == {UNKNOWN} and len(amounts) > 1:
        return "vocabularies or amounts of text"
    of_length = {(row.length, row.tokens) for row in scored}
    if len(of_length) > len({row.length for row in scored}):
        return "numbers of scored tokens at a length"
    return ""


def text_description(rows: Sequence[SweepRow], texts: Texts, apart: str) -> str:
    """Describe the scored text and its number of tokens.

    `apart` is the reason why losses in nats are not comparable, or "" if they are.
    """
    scored_texts = sorted({texts.of(row) for row in rows if row.tokens})
    budgets = sorted({row.tokens for row in rows if row.tokens})
    if apart:
        counts = " or ".join(f"{count:,}" for count in budgets)
        names = f" ({', '.join(map(text_name, scored_texts))})" * (
            len(scored_texts) > 1 or UNKNOWN in scored_texts
        )
        return (
            f"Losses are in bits per byte only, over {counts} tokens: the runs differ in "
            f"{apart}{names}, so their losses in nats per token cannot be compared."
        )
    if not budgets:
        return "The text is too short for a row of any of these lengths."
    mean_over = f"Each loss is a mean over {budgets[-1]:,} tokens"
    if scored_texts == [UNKNOWN]:
        return (
            f"{mean_over} at every length. The text is not recorded (scored_text.csv lacks these "
            "losses); only the numbers of tokens and bytes are known to agree."
        )
    return f"{mean_over}, the same text at every length ({text_name(scored_texts[0])})."


def rows_of(results: Results, scored: Scored) -> list[SweepRow]:
    runs = {run.run for run in results.runs}
    return [row for row in results.losses if row.run in runs and scored_in(row) == scored]


def other_steps(results: Results, rows: Sequence[SweepRow | LengthAccuracy]) -> list[str]:
    """Describe the rows that were scored before the newest step of their run."""
    last = {run.run: run.step for run in results.runs}
    steps = dict.fromkeys(
        (row.run, row.step) for row in rows if row.step < last.get(row.run, row.step)
    )
    earlier = ", ".join(f"{run} at {step:,} of {last[run]:,}" for run, step in steps)
    return [f"Scored before the newest step of the run: {earlier}."] if earlier else []
