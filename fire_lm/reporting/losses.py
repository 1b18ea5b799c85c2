"""Losses as series: against length, by position, and by training tokens."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fire_lm.reporting.differences import Sample
from fire_lm.reporting.series import Mean, Series, at_step, grouped, line_name
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.scored_text import UNKNOWN, Texts, text_name
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import PositionLoss


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
    different texts or at different steps form separate series.

    Args:
      results: The results.
      nats: Whether losses are in nats per token, as opposed to bits per byte. The rows of text are
        known only in nats, because a row has no number of bytes.
    """
    facts = {run.run: run for run in results.runs}
    groups: dict[Scored, dict[_Key, list[SweepRow]]] = {}
    gaps: dict[tuple[Scored, str, str], set[int]] = {}
    for row in results.losses:
        if row.run in facts and not row.tokens:  # the text was too short for a row of that length
            key_of_gap = (scored_in(row), facts[row.run].arm, row.variant)
            gaps.setdefault(key_of_gap, set()).add(row.length)
        elif row.run in facts:
            of_scored = groups.setdefault(scored_in(row), {})
            key = _Key(facts[row.run].arm, row.variant, results.texts.of(row), row.step)
            of_scored.setdefault(key, []).append(row)
    lines = {}
    for scored, groups_of in groups.items():
        lines[scored] = [
            _series(
                key.name(groups_of), key, rows, facts[rows[0].run], results.texts, nats, missing
            )
            for key, rows in sorted(groups_of.items(), key=_rank)
            for missing in [gaps.get((scored, key.arm, key.variant), set())]
        ]
    return lines


class _Key(NamedTuple):
    """What distinguishes the series of a figure."""

    arm: str
    variant: str
    text: str
    step: int

    def name(self, others: Iterable[_Key]) -> str:
        """Return the name of the series among all series of a figure."""
        others = list(others)
        texts = {other.text for other in others}
        steps = {other.step for other in others if other[:2] == self[:2]}
        name = line_name(self.arm, self.variant)
        name += f" ({text_name(self.text)})" * (len(texts) > 1)
        return at_step(name, self.step, len(steps) > 1)


def _rank(group: tuple[_Key, Sequence[SweepRow]]) -> tuple[int, float]:
    """Return a key that sorts series by their loss at the longest length, best first.

    With one vocabulary, the order by bits per byte is also the order by nats per token.
    """
    longest = max(row.length for row in group[1])
    bits = [row.bits_per_byte for row in group[1] if row.length == longest]
    return -longest, statistics.fmean(bits)


def _series(
    name: str,
    key: _Key,
    rows: Sequence[SweepRow],
    first: RunFacts,
    texts: Texts,
    nats: bool,
    gaps: Iterable[int],
) -> Series:
    by_length = sorted(grouped(rows, lambda row: row.length).items())
    points = {length: _mean(some, texts, key.text, nats) for length, some in by_length}
    return Series(
        name=name,
        points=points,
        arm=key.arm,
        variant=key.variant,
        train_length=first.train_length,
        missing={length: "no text" for length in gaps if length not in points},
        encoding=first.encoding,
        text=key.text,
        step=key.step,
    )


def _mean(rows: Sequence[SweepRow], texts: Texts, text: str, nats: bool) -> Mean:
    """Return the mean loss of runs at a length, with the losses of each row of text if known."""
    if not nats:
        errors = [row.nll_stderr * row.tokens / max(1, row.bytes) / math.log(2) for row in rows]
        values = {row.run: row.bits_per_byte for row in rows}
        return Mean(Sample(values), statistics.fmean(errors))
    values = {row.run: row.nll for row in rows}
    error = statistics.fmean(row.nll_stderr for row in rows)
    of_run = _rows_of_text(rows, texts)
    sample = Sample(values) if of_run is None else Sample(values, *of_run, text=text)
    return Mean(sample, error)


def _rows_of_text(
    rows: Sequence[SweepRow], texts: Texts
) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """Return the number of tokens of each row of text, and the losses of the rows for each run.

    The result is None if the text of a seed is not recorded, or if the numbers of tokens in its
    rows differ between seeds.
    """
    lines = {row.run: line for row in rows if (line := texts.line(row))}
    first = next(iter(lines.values()), None)
    if first is None or len(lines) < len(rows):
        return None
    if not all(np.array_equal(line.tokens_R, first.tokens_R) for line in lines.values()):
        return None
    return first.tokens_R, {run: line.nll_R for run, line in lines.items()}


def differences(rows: Iterable[SweepRow], texts: Texts) -> str:
    """Return the difference that makes nats per token of these rows incomparable, or "".

    Losses per token are comparable only for the same text with the same tokenization. Rows with a
    recorded text are compared by that text, other rows by their numbers of tokens and bytes.
    """
    scored = [row for row in rows if row.tokens]
    if len({(row.dataset, row.split) for row in scored}) > 1:
        return "data sets"
    if len({row.construction for row in scored}) > 1:
        return "constructions"
    if len(found := {texts.of(row) for row in scored}) > 1:
        return "texts or vocabularies"
    protocols = {row.protocol for row in scored}
    amounts = {(row.protocol, row.tokens, row.bytes) for row in scored}
    if found == {UNKNOWN} and len(amounts) > len(protocols):
        return "vocabularies or amounts of text"
    of_length = {(row.protocol, row.length, row.tokens) for row in scored}
    if len(of_length) > len({(row.protocol, row.length) for row in scored}):
        return "numbers of scored tokens at a length"
    return ""


def described(rows: Sequence[SweepRow], texts: Texts, apart: str) -> str:
    """Describe the scored text and its number of tokens.

    `apart` is the reason why losses in nats are not comparable, or "" if they are.
    """
    found = sorted({texts.of(row) for row in rows if row.tokens})
    budgets = sorted({row.tokens for row in rows if row.tokens})
    if apart:
        counts = " or ".join(f"{count:,}" for count in budgets)
        names = f" ({', '.join(map(text_name, found))})" * (len(found) > 1 or UNKNOWN in found)
        return (
            f"Losses are in bits per byte only, over {counts} tokens: the runs differ in "
            f"{apart}{names}, so their losses in nats per token cannot be compared."
        )
    if not budgets:
        return "The text is too short for a row of any of these lengths."
    told = f"Each loss is a mean over {budgets[-1]:,} tokens"
    if found == [UNKNOWN]:
        return (
            f"{told} at every length. The text is not recorded, because an older version scored "
            "it; only the numbers of tokens and bytes are known to agree."
        )
    fewer = {row.length: budgets[-1] - row.tokens for row in rows if row.tokens}
    left = [f"{count:,} at length {n}" for n, count in sorted(fewer.items()) if count]
    # Only in rows of older versions are tokens skipped.
    left_out = f"; lengths that do not divide the rows of text skip tokens ({', '.join(left)})"
    return f"{told}, the same text at every length ({text_name(found[0])}){left_out * bool(left)}."


def rows_of(results: Results, scored: Scored) -> list[SweepRow]:
    runs = {run.run for run in results.runs}
    return [row for row in results.losses if row.run in runs and scored_in(row) == scored]


def position_lines(results: Results) -> dict[str, list[Series]]:
    """Return, for each text, the losses of each arm and variant by the centre of position bins.

    Rows with different text hashes or numbers of tokens are kept apart, because their losses in
    nats are not comparable. Runs of an arm at different steps are separate series.
    """
    facts = {run.run: run for run in results.runs}
    tokens: dict[tuple[object, ...], int] = {}
    for row in results.positions:
        tokens[row.key] = tokens.get(row.key, 0) + row.tokens
    of = results.texts.of_all_positions(results.positions)
    texts: dict[str, set[str]] = {}
    for row in results.positions:
        texts.setdefault(_positions_of(row, tokens[row.key]), set()).add(of[row.key])
    groups: dict[str, dict[tuple[str, str], list[PositionLoss]]] = {}
    for row in results.positions:
        if row.run in facts:
            text = _positions_of(row, tokens[row.key])
            if len(texts[text]) > 1 or of[row.key] == UNKNOWN:
                text = f"{text}, {text_name(of[row.key])}"
            key = facts[row.run].arm, row.variant
            groups.setdefault(text, {}).setdefault(key, []).append(row)
    lines = {text: _by_step(of_text, facts) for text, of_text in groups.items()}
    return {text: drawable for text, drawable in lines.items() if drawable}


def _by_step(
    groups: Mapping[tuple[str, str], Sequence[PositionLoss]], facts: Mapping[str, RunFacts]
) -> list[Series]:
    """Return the series of each arm and variant, of which there are several if steps differ."""
    series = []
    for (arm, variant), rows in sorted(groups.items(), key=lambda group: line_name(*group[0])):
        steps = grouped(rows, lambda row: row.step)
        for step, own in sorted(steps.items()):
            if points := _over_bins(own):
                name = at_step(line_name(arm, variant), step, len(steps) > 1)
                trained = facts[own[0].run].train_length
                series.append(Series(name, points, arm, variant, trained, step=step))
    return series


def _positions_of(row: PositionLoss, tokens: int) -> str:
    return f"{row.dataset} {row.split}, {row.construction}, length {row.length}, {tokens:,} tokens"


def _over_bins(rows: Sequence[PositionLoss]) -> dict[float, Mean]:
    """Return the mean over runs in each bin of positions, by the centre of the bin.

    Bins without a finite loss for every run are omitted, because their means would be over fewer
    runs.
    """
    runs = {row.run for row in rows}
    return {
        (first + last) / 2: Mean(
            Sample({row.run: row.nll for row in some}),
            statistics.fmean(row.nll_stderr for row in some),
        )
        for (first, last), some in sorted(grouped(rows, lambda row: (row.first, row.last)).items())
        if {row.run for row in some} == runs and all(math.isfinite(row.nll) for row in some)
    }


def training_lines(results: Results) -> list[list[Series]]:
    """Return each arm's training loss by tokens, at the steps that all of its runs have logged.

    There is a separate list for each text and vocabulary, because their losses in nats are not
    comparable.
    """
    arm = {run.run: run.arm for run in results.runs}
    points = grouped((p for p in results.training if p.run in arm), lambda p: arm[p.run])
    lines: dict[object, list[Series]] = {}
    for name, of_arm in sorted(points.items()):
        runs = {point.run for point in of_arm}
        means = {
            statistics.fmean(p.tokens for p in some): Mean(Sample({p.run: p.loss for p in some}))
            for _, some in sorted(grouped(of_arm, lambda point: point.step).items())
            if {p.run for p in some} == runs
        }
        if means:
            text = _text_of(results, min(runs))
            lines.setdefault(text, []).append(Series(name, means, name))
    return list(lines.values())


def _text_of(results: Results, run: str) -> object:
    """Return the training text, the vocabulary and the vocabulary size of a run.

    The vocabulary and its size are None if they are the same for all runs or are not set.
    """
    data = next(facts.data for facts in results.runs if facts.run == run)
    settings = {s.name: s.value for s in results.settings if s.run == run}
    return data, settings.get("TextData.vocabulary"), settings.get("build_decoder.vocab_size")
