"""Losses by position in the sequence and in training: series and pictures."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Mapping, Sequence

from fire_lm.reporting import figure
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.page import Picture
from fire_lm.reporting.series import (
    Series,
    grouped,
    lengths_of,
    line_name,
    points_of,
    series_by_arm,
)
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import UNKNOWN, text_name
from fire_lm.results.tables import PositionLoss


def position_lines(results: Results) -> dict[str, list[Series]]:
    """Return, for each text, the losses of each arm and variant by the centre of position bins.

    Rows with different text hashes or numbers of tokens are kept apart, because their losses in
    nats are not comparable. Runs of an arm at different steps are separate series.
    """
    facts = {run.run: run for run in results.runs}
    names, of_name = {}, collections.defaultdict(set)
    texts = results.texts.of_all_positions(results.positions)
    for key, bins in grouped(results.positions, lambda row: row.key).items():
        text, tokens = f"{bins[0].dataset} {bins[0].split}", sum(row.tokens for row in bins)
        names[key] = f"{text}, {bins[0].construction}, length {bins[0].length}, {tokens:,} tokens"
        of_name[names[key]].add(texts[key])

    def name(row: PositionLoss) -> str:
        known = len(of_name[names[row.key]]) == 1 and texts[row.key] != UNKNOWN
        return names[row.key] if known else f"{names[row.key]}, {text_name(texts[row.key])}"

    rows = (row for row in results.positions if row.run in facts)
    lines = {}
    for text, of_text in grouped(rows, name).items():
        if series := series_by_arm(of_text, facts, _over_bins):
            series.sort(key=lambda one: (line_name(one.arm, one.variant), one.step))
            lines[text] = series
    return lines


def _over_bins(rows: Sequence[PositionLoss]) -> dict[float, Sample]:
    """Return the mean over runs in each bin of positions, by the centre of the bin.

    Bins without a finite loss for every run are omitted, because their means would be over fewer
    runs.
    """
    runs = {row.run for row in rows}
    bins = points_of(rows, lambda row: (row.first, row.last), "nll", "nll_stderr")
    return {
        (first + last) / 2: point
        for (first, last), point in bins.items()
        if point.values.keys() == runs and math.isfinite(point.mean)
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
            statistics.fmean(p.tokens for p in some): Sample({p.run: p.loss for p in some})
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


def positions(results: Results, styles: Mapping[str, figure.Style]) -> list[Picture]:
    """Draw loss by token position, as in Figures 2 and 3 of arXiv:2310.13017."""
    axis = figure.Axis("position in the sequence (tokens)", "loss (nats per token)", nats=True)
    trained = [run.train_length for run in results.runs]
    pictures = []
    for text, lines in position_lines(results).items():
        panel = figure.Panel("", lines, axis, errors="bands", trained=trained)
        caption = (
            f"Loss by position, {text}. Lines: means over sequences in bins of neighbouring "
            f"positions; bands: {figure.band(lines)}; {figure.dotted(trained)}."
        )
        alt = (
            f"Line chart of the mean loss by token position, {text}. "
            f"In the last bin: {figure.ends([panel], 2)}."
        )
        pictures.append(figure.picture(f"positions {text}", caption, alt, [panel], styles))
    return pictures


def training_limits(lines: Sequence[Series]) -> tuple[float, float]:
    """Return limits of a figure within which every line ends, and most of its course lies."""
    means = [[point.mean for point in line.points.values()] for line in lines]
    lowest = min(map(min, means))
    start = max(first for first, *_ in means)
    last = max(own[-1] for own in means)
    return 0.97 * lowest, max(1.05 * lowest, min(start, max(2.2 * lowest, 1.05 * last)))


def training(results: Results, styles: Mapping[str, figure.Style]) -> list[Picture]:
    """Draw a picture of training losses for each combination of text and vocabulary."""
    pictures = []
    for number, lines in enumerate(training_lines(results), start=1):
        limits = training_limits(lines)
        axis = figure.Axis("training tokens", "training loss (nats per token)", limits=limits)
        panel = figure.Panel("", lines, axis, errors="")
        start = max(next(iter(line.points.values())).mean for line in lines)
        cut = f"; losses above {limits[1]:.3g}, at the start of runs, are cut off"
        pictures.append(
            figure.picture(
                f"training_{number}" if number > 1 else "training",
                f"Training loss of individual batches, averaged over seeds, up to "
                f"{lengths_of(lines)[-1]:,.0f} tokens{cut * (start > limits[1])}.",
                f"Line chart of training loss against tokens. Last values: "
                f"{figure.ends([panel], 3)}.",
                [panel],
                styles,
            )
        )
    return pictures
