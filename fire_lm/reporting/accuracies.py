"""Accuracy by length on synthetic tasks: series, tables, figures, and maps of tasks and arms."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from etils import epath

from fire_lm.reporting import charts, figure
from fire_lm.reporting.accuracy_maps import Cell, heat_map
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.effective_length import SHARE, effective_table, of_accuracies
from fire_lm.reporting.losses import other_steps
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import (
    ACCURACY,
    Series,
    at_step,
    grouped,
    have_spread,
    lengths_of,
    line_name,
    points_of,
    table,
)
from fire_lm.reporting.verdicts import Comparison
from fire_lm.results.folder import Results
from fire_lm.results.tables import LengthAccuracy, TrainedTask
from fire_lm.tasks.synthetic.guessing import MOST_FREQUENT, without_reading
from fire_lm.tasks.synthetic.scoring import mean_weights

TRAINED, LONGER = "training", "longer"  # lengths: the sides of the longest training length


def accuracy_lines(results: Results) -> dict[str, list[Series]]:
    """Return the accuracies in percent of each task and layout, by length.

    A series has the lengths that were measured for every seed; its `train_length` is the maximum
    length of the exercises in training. The series are in descending order of their mean accuracy
    beyond the training lengths or, if none of those was measured, over the training lengths. Series
    that lack some of the longer lengths come last, because their means are not comparable.
    """
    trained = {one.run: one for one in results.tasks}
    rows = (row for row in results.accuracies if row.run in trained)
    lines_of_tasks = {}
    for task, of_task in sorted(grouped(rows, task_of).items()):
        several = len({row.step for row in of_task}) > 1
        groups = grouped(of_task, functools.partial(_name, trained, several))
        lines = [_series(name, own, trained[own[0].run].max_length) for name, own in groups.items()]
        most = max(len(lengths_on(LONGER, line)) for line in lines)
        lines_of_tasks[task] = sorted(lines, key=functools.partial(_rank, most))
    return lines_of_tasks


def _rank(most: int, line: Series) -> tuple[bool, float]:
    longer = mean_on(LONGER, line) or mean_on(TRAINED, line)
    return len(lengths_on(LONGER, line)) < most, -(longer.mean if longer else 0.0)


def task_of(row: LengthAccuracy) -> str:
    return f"{row.task}, {row.layout}"


def _name(trained: Mapping[str, TrainedTask], several: bool, row: LengthAccuracy) -> str:
    """Return the name of a row's series; `several` states whether there are several steps."""
    run = trained[row.run]
    other = f", trained on {run.task}" * (run.task != row.task)
    return at_step(accuracy_name(run.name, row) + other, row.step, several)


def accuracy_name(arm: str, row: LengthAccuracy) -> str:
    what = [row.variant] * bool(row.variant)
    what += [f"positions {row.positions}"] * (row.positions != "plain")
    return line_name(arm, ", ".join(what))


def _series(name: str, rows: Sequence[LengthAccuracy], max_length: int) -> Series:
    runs = {row.run for row in rows}
    points = points_of(rows, lambda row: row.length, "accuracy")
    points = {length: point for length, point in points.items() if point.values.keys() == runs}
    encoding = name.partition(" (")[0].partition(", ")[0]  # whose variants share a colour
    return Series(name, points, encoding, name.removeprefix(encoding), max_length)


def lengths_on(side: str, line: Series) -> tuple[int, ...]:
    """Return the measured lengths up to, or beyond, the longest training length."""
    return tuple(n for n in line.points if (n > line.train_length) == (side == LONGER))


def mean_on(side: str, line: Series) -> Sample | None:
    """Return the mean over all lengths of a side from the first to the last measured one.

    Each run has its own mean, with the weights of `mean_weights`. The result is None if no length
    of the side was measured.
    """
    lengths = lengths_on(side, line)
    if not lengths:
        return None
    weights = mean_weights(lengths)
    values = {
        run: float(weights @ [line.points[n].values[run] for n in lengths])
        for run in line.points[lengths[0]].values
    }
    errors = [line.points[length].error for length in lengths]
    # Lengths have different exercises.
    return Sample(values, error=float(np.linalg.norm(weights * errors)))


def usual_lengths(side: str, lines: Iterable[Series]) -> tuple[int, ...]:
    """Return the lengths of a side that most series have, among the series that have any."""
    counts = collections.Counter(own for line in lines if (own := lengths_on(side, line)))
    return counts.most_common(1)[0][0] if counts else ()


def sides(lines: Sequence[Series]) -> list[Series]:
    """Return the means of series over training lengths and over longer lengths.

    A mean over other lengths than those of most series is not comparable; it is only text.
    """
    made = []
    for line in lines:
        points, missing = {}, {}
        for side in (TRAINED, LONGER):
            own, point = lengths_on(side, line), mean_on(side, line)
            if point and own == usual_lengths(side, lines):
                points[side] = point
            elif point:
                several = f"{len(own)} lengths, {own[0]} to {own[-1]}"
                other = several if len(own) > 1 else f"length {own[0]}"
                missing[side] = f"{point.mean:.1f} ({other})"
        made.append(dataclasses.replace(line, points=points, missing=missing))
    return made


def accuracy_comparison(lines: Sequence[Series]) -> Comparison:
    """Return the means over training and over longer lengths for tests of differences."""
    places: dict[Hashable, str] = {side: f"over {side} lengths" for side in (TRAINED, LONGER)}
    return Comparison(sides(lines), places, ACCURACY)


def accuracy_table(results: Results, task: str, lines: Sequence[Series]) -> Table:
    """Tabulate the means over training lengths and over longer lengths, and the longest length."""
    longest = max(lengths_of(lines), default=0)
    body = [
        dataclasses.replace(both, points={**both.points, longest: line.points[longest]})
        if longest in line.points
        else both
        for both, line in zip(sides(lines), lines, strict=True)
    ]
    rows = [row for row in results.accuracies if task_of(row) == task]
    exercises = " or ".join(map(str, sorted({row.sequences for row in rows})))
    trained = " or ".join(map(str, sorted({line.train_length for line in lines})))
    note = (
        " Means over lengths are over all lengths from the first to the last measured one, with "
        f"linear interpolation; {exercises} exercises of each measured length; trained up to "
        f"length {trained}.{_guess(task, lines)}"
    )
    heads = {TRAINED: "trained lengths", LONGER: "longer lengths", longest: f"length {longest}"}
    return table(body, heads, ACCURACY, f"{task}, {readers(results, rows)}: {ACCURACY.title}", note)


def accuracy_tables(results: Results, task: str, lines: Sequence[Series]) -> list[Table]:
    """Return the tables of a task: accuracies, their differences, and effective lengths."""
    caption = (
        f"Effective length on {task}: the largest measured length up to which the accuracy has not "
        f"fallen below {SHARE:.0%} of that at the training length; none if guessing reaches that."
    )
    effective = effective_table(
        caption,
        lines,
        lambda line, values: of_accuracies(values, line.train_length, guesses(task, [*values])),
    )
    differences = accuracy_comparison(lines).difference_tables()
    return [accuracy_table(results, task, lines), *differences, effective]


def readers(results: Results, rows: Sequence[LengthAccuracy]) -> str:
    """Say whether causal decoders or encoders, which see later symbols, read the exercises."""
    scored = {row.run for row in rows}
    kinds = {run.encoder for run in results.runs if run.run in scored}
    if len(kinds) > 1:
        return "causal decoders and encoders"
    return "encoder" if True in kinds else "causal decoder"


def _guess(task: str, lines: Sequence[Series]) -> str:
    """Say what the best answer without reading scores over the lengths of each mean, if known."""
    chances = [
        f"{value:.1f} % over {side} lengths"
        for side in (TRAINED, LONGER)
        if (value := mean_of_guesses(task, usual_lengths(side, lines)))
    ]
    if not chances:
        return ""
    return f" The best answer from length and place alone scores {' and '.join(chances)}."


def guesses(task: str, lengths: Sequence[int]) -> dict[int, float]:
    """Return the accuracy in percent, by length, of the best answer from length and place alone.

    The result is {} if the accuracy is unknown; it is known for tasks with their default settings.
    """
    name = task.partition(",")[0]
    return {length: without_reading(name, length) for length in lengths if name in MOST_FREQUENT}


def mean_of_guesses(task: str, lengths: Sequence[int]) -> float | None:
    """Return the mean of `guesses` with the weights of a series' mean, or None if unknown."""
    values = guesses(task, lengths)
    return float(mean_weights(lengths) @ [values[n] for n in lengths]) if values else None


def sections(results: Results) -> list[Section]:
    """Return the section on accuracy in a list, or [] if no run is trained on a synthetic task."""
    if not results.tasks:
        return []
    words = other_steps(results, results.accuracies)
    tables = []
    for task, lines in accuracy_lines(results).items():
        tables += accuracy_tables(results, task, lines)
        words += [f"{task}. {told}" for told in accuracy_comparison(lines).rankings()]
    if not tables:
        words = ["No length has been measured yet: run `fire-lm evaluate RUN`."]
    return [Section("Accuracy against length", words, [*pictures(results), *tables])]


def accuracy_text(results: Results) -> str:
    """Format the verdict and the tables of each task for the terminal."""
    blocks = []
    for task, lines in accuracy_lines(results).items():
        words, tables = accuracy_comparison(lines).words_and_tables(
            accuracy_tables(results, task, lines)
        )
        blocks.append("\n".join([*words, *(one.plain() for one in tables)]))
    return "\n\n".join(blocks)


def pictures(results: Results) -> list[Picture]:
    """Draw accuracy against length and, if there are several tasks, maps of the means."""
    lines = accuracy_lines(results)
    if not lines:
        return []
    panels, styles, note = _curves(results, lines)
    best = "; ".join(f"{own[0].name} on {task}" for task, own in lines.items())
    curves = figure.picture(
        "length_accuracy",
        f"Accuracy against input length, {note}; dotted: the longest training length; guess: the "
        "best answer from a symbol's length and place alone.",
        f"Line charts of accuracy against length. Best beyond the training lengths: {best}.",
        panels,
        styles,
        note=note,
    )
    return [curves] if len(lines) == 1 else [curves, *_maps(lines, best)]


def write_figure(results: Results, path: epath.Path) -> None:
    """Write a PNG of accuracy against length."""
    panels, styles, note = _curves(results, accuracy_lines(results))
    path.write_bytes(charts.png(*figure.drawing(panels, styles, note=note)))


def _curves(
    results: Results, lines: Mapping[str, Sequence[Series]]
) -> tuple[list[figure.Panel], dict[str, figure.Style], str]:
    """Return a panel for each task, the styles of the lines, and a note on what is drawn."""
    axis = figure.Axis("input length (symbols)", "accuracy (%)", limits=(-2, 102))
    panels = [
        figure.Panel(
            task,
            own,
            axis,
            errors="seeds",
            trained=[line.train_length for line in own],
            guess=guesses(task, lengths_of(own)),
        )
        for task, own in lines.items()
    ]
    styles = figure.line_styles(line for own in lines.values() for line in own)
    bands = "; bands: standard deviation over seeds" * any(map(have_spread, lines.values()))
    return panels, styles, f"{readers(results, results.accuracies)}{bands}"


def _maps(lines: Mapping[str, Sequence[Series]], best: str) -> list[Picture]:
    """Draw a map of training lengths and one of longer lengths, and omit a map without values."""
    made = []
    for name, side, note in (
        ("length_accuracy_map_trained", TRAINED, ""),
        ("length_accuracy_map", LONGER, f" Best: {best}."),
    ):
        cells, unread = {}, {}
        for task, own in lines.items():
            usual = usual_lengths(side, own)
            unread[task] = mean_of_guesses(task, usual)
            for line in own:
                if point := mean_on(side, line):
                    cells[task, line.name] = Cell(point.mean, lengths_on(side, line) != usual)
        if cells:
            caption = (
                f"Mean accuracy in percent over all {side} lengths from the first to the last "
                "measured one. Colours run from the best answer from length and place alone (0 if "
                "it is unknown) to 100; * marks a mean over other lengths than those of most arms."
            )
            alt = f"Heat map of mean accuracy over {side} lengths by task and arm.{note}"
            names = sorted({line.name for own in lines.values() for line in own})
            image = charts.drawn(*heat_map(names, cells, unread))
            made.append(Picture(name, caption, alt, image, panels=2))
    return made
