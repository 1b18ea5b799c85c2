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
    rows = (row for row in results.measures if row.run in arms)
    return [_section(results, *group) for group in grouped(rows, lambda r: r.measure).items()]


def measure_lines(results: Results, rows: Sequence[MeasuredValue]) -> list[Series]:
    """Return the values of arms and variants by length; steps of an arm are separate series.

    The series are in descending order of their values at the longest length.
    """
    facts = {run.run: run for run in results.runs}
    series = series_by_arm(rows, facts, lambda own: points_of(own, lambda row: row.length))
    return sorted(series, key=lambda one: (-max(one.points), -one.points[max(one.points)].mean))


def scale_of(name: str, rows: Sequence[MeasuredValue]) -> Scale:
    """Return the scale of a quantity, with four significant digits of its largest value.

    Whether a higher value is better is unknown.
    """
    largest = max((abs(row.value) for row in rows), default=0.0)
    digits = max(0, 3 - math.floor(math.log10(largest))) if largest else 3
    title = name[0].upper() + name[1:]
    over, order = "what was measured", "Highest first"
    return Scale(title, "highest value", name, digits, False, over=over, order=order)


def _section(results: Results, name: str, rows: Sequence[MeasuredValue]) -> Section:
    plain, words = name.replace("_", " "), []
    title = plain[0].upper() + plain[1:]
    finite = [row for row in rows if math.isfinite(row.value)]
    if count := len(rows) - len(finite):
        runs = ", ".join(sorted({row.run for row in rows if not math.isfinite(row.value)}))
        values = f"{count} value{'s' * (count > 1)} of {runs}"
        words.append(f"Left out of all means, because they are not finite: {values}.")
    if not finite:
        return Section(f"{title} against length", words)
    parts: list[Table | Picture] = []
    panels, ends = [], []
    for part, own in grouped(finite, lambda row: row.part).items():
        lines = measure_lines(results, own)
        scale = scale_of(f"{plain}{f', {part}' * bool(part)}", own)
        compared = length_comparison(lines, scale)
        words += [f"{part}: " * bool(part) + told for told in compared.rankings()]
        parts.append(table(lines, compared.heads, scale, mark_best=False))
        parts += compared.difference_tables()
        axis = figure.Axis("sequence length (tokens)", plain, lengths=True)
        trained = [one.train_length for one in lines]
        panels.append(figure.Panel(part, lines, axis, trained=trained))
        ends.append(figure.ends(panels[-1:], scale.digits))
    series = [one for panel in panels for one in panel.series]
    picture = figure.picture(
        f"measure {name}",
        f"{title} against length; bars: {spread_of(series, scale.over)}; "
        f"{figure.dotted(one.train_length for one in series)}.",
        f"Line chart of {plain} against length. Last values: {'; '.join(ends)}.",
        panels,
        figure.line_styles(series, sorted(results.arms())),
    )
    return Section(f"{title} against length", words, [*parts, picture])
