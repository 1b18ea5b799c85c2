"""The section on any measure by length, such as one of your own: a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fire_lm.reporting import figure
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import (
    Scale,
    Series,
    grouped,
    points_of,
    series_by_arm,
    spread_of,
    table,
)
from fire_lm.reporting.verdicts import length_comparison
from fire_lm.results.folder import Results
from fire_lm.results.measured_values import MeasuredValue


def sections(results: Results) -> list[Section]:
    """Return a section for each measure, with a table and a panel for each part of it."""
    arms = {run.run for run in results.runs}
    rows = [row for row in results.measures if row.run in arms and math.isfinite(row.value)]
    return [_section(results, *group) for group in grouped(rows, lambda r: r.measure).items()]


def measure_lines(results: Results, rows: Sequence[MeasuredValue]) -> list[Series]:
    """Return the values of arms and variants by length; steps of an arm are separate series.

    The series are in descending order of their values at the longest length.
    """
    facts = {run.run: run for run in results.runs}
    series = series_by_arm(rows, facts, lambda own: points_of(own, lambda row: row.length))
    return sorted(series, key=lambda one: (-max(one.points), -one.points[max(one.points)].mean))


def scale_of(name: str, rows: Sequence[MeasuredValue]) -> Scale:
    """Return the scale of a measure, with four significant digits of its largest value."""
    largest = max((abs(row.value) for row in rows), default=0.0)
    digits = max(0, 3 - math.floor(math.log10(largest))) if largest else 3
    words = name.replace("_", " ")
    title = words[0].upper() + words[1:]
    return Scale(title, "highest value", words, digits, False, over="what was measured")


def _section(results: Results, name: str, rows: Sequence[MeasuredValue]) -> Section:
    scale, words = scale_of(name, rows), []
    parts: list[Table | Picture] = []
    panels = []
    for part, own in grouped(rows, lambda row: row.part).items():
        lines = measure_lines(results, own)
        compared = length_comparison(lines, scale)
        title = f"{scale.title}{f', {part}' * bool(part)}"
        words += [f"{part}: " * bool(part) + told for told in compared.rankings()]
        parts.append(table(lines, compared.heads, scale, title, mark_best=False))
        parts += compared.difference_tables()
        axis = figure.Axis("sequence length (tokens)", scale.unit, lengths=True)
        trained = [one.train_length for one in lines]
        panels.append(figure.Panel(part, lines, axis, trained=trained))
    series = [one for panel in panels for one in panel.series]
    picture = figure.picture(
        f"measure {name}",
        f"{scale.title} against length; bars: {spread_of(series, scale.over)}; "
        f"{figure.dotted(one.train_length for one in series)}.",
        f"Line chart of {scale.unit} against length. Last values: "
        f"{figure.ends(panels, scale.digits)}.",
        panels,
        figure.line_styles(series, sorted(results.arms())),
    )
    return Section(f"{scale.title} against length", words, [*parts, picture])
