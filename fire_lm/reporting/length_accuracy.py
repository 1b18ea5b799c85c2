"""Accuracy by length on synthetic tasks: tables, curves, and a heat map of tasks and arms."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture, Table
from fire_lm.reporting.seeds import Mean, at_step, mean
from fire_lm.results.folder import Results
from fire_lm.results.tables import LengthAccuracy
from fire_lm.tasks.synthetic.scoring import MOST_FREQUENT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3  # the number of panels side by side
_FREQUENT = "most frequent symbol"


@dataclasses.dataclass(frozen=True)
class AccuracyLine:
    """An arm's accuracy on a task.

    Attributes:
      name: The name of the arm, followed by its variant and evaluation positions, if any, and by
        the step if the runs of an arm have rows of several steps.
      max_length: The maximum length of the exercises in training.
      points: The mean accuracy over seeds, in percent, by length.
      shared: The lengths that were measured for every seed, in ascending order. Only these lengths
        are averaged.
      seeds: For each seed, the mean accuracy, in percent, over lengths beyond `max_length`.
    """

    name: str
    max_length: int
    points: Mapping[int, Mean]
    shared: Sequence[int]
    seeds: Sequence[float]

    @property
    def trained_lengths(self) -> list[int]:
        return [length for length in self.shared if length <= self.max_length]

    @property
    def longer_lengths(self) -> list[int]:
        return [length for length in self.shared if length > self.max_length]

    @property
    def trained(self) -> float | None:
        """The mean accuracy over training lengths, or None if none of them was measured."""
        return _mean_of([self.points[length].value for length in self.trained_lengths])

    @property
    def longer(self) -> float | None:
        return _mean_of([self.points[length].value for length in self.longer_lengths])


def accuracy_lines(results: Results) -> dict[str, list[AccuracyLine]]:
    """Return the lines of each task and layout.

    The lines are in descending order of their mean accuracy beyond the training lengths or, if
    none of those was measured, over the training lengths. Lines that lack some of the longer
    lengths come last, because their means are not comparable.
    """
    trained = {one.run: one for one in results.tasks}
    steps: dict[tuple[str, str, str], set[int]] = {}
    for row in results.accuracies:
        if row.run in trained:
            key = (row.task, row.layout, trained[row.run].name)
            steps.setdefault(key, set()).add(row.step)
    several = any(len(of_arm) > 1 for of_arm in steps.values())
    groups: dict[str, dict[str, list[LengthAccuracy]]] = {}
    for row in results.accuracies:
        if row.run in trained:
            name = at_step(line_name(trained[row.run].name, row), row.step, several)
            groups.setdefault(f"{row.task}, {row.layout}", {}).setdefault(name, []).append(row)
    return {
        task: _in_order(
            [_line(name, rows, trained[rows[0].run].max_length) for name, rows in lines.items()]
        )
        for task, lines in sorted(groups.items())
    }


def _in_order(lines: Sequence[AccuracyLine]) -> list[AccuracyLine]:
    most = max(len(line.longer_lengths) for line in lines)

    def rank(line: AccuracyLine) -> tuple[bool, float]:
        found = line.trained or 0 if line.longer is None else line.longer
        return len(line.longer_lengths) < most, -found

    return sorted(lines, key=rank)


def line_name(arm: str, row: LengthAccuracy) -> str:
    what = [row.variant] * bool(row.variant)
    what += [f"positions {row.positions}"] * (row.positions != "plain")
    return f"{arm} ({', '.join(what)})" if what else arm


def _line(name: str, rows: Sequence[LengthAccuracy], max_length: int) -> AccuracyLine:
    lengths = sorted({row.length for row in rows})
    runs = dict.fromkeys(row.run for row in rows)
    points = {}
    for length in lengths:
        of_length = [row for row in rows if row.length == length]
        values, error = [row.accuracy for row in of_length], of_length[0].stderr
        points[length] = mean(values, error)
    of_runs = [{row.length: row.accuracy for row in rows if row.run == run} for run in runs]
    shared = sorted(set.intersection(*(set(of_run) for of_run in of_runs)))
    longer = [
        _mean_of([of_run[length] for length in shared if length > max_length]) for of_run in of_runs
    ]
    seeds = [value for value in longer if value is not None]
    return AccuracyLine(name, max_length, points, shared, seeds)


def _mean_of(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def accuracy_table(task: str, lines: Sequence[AccuracyLine]) -> Table:
    """Tabulate the accuracies of the lines of a task and layout.

    The columns are the mean over training lengths, the mean over longer lengths, and the accuracy
    at the longest length. A mean over other lengths than those of most lines states its lengths.
    """
    longest = max(length for line in lines for length in line.points)
    usual = [
        _usual([line.trained_lengths for line in lines]),
        _usual([line.longer_lengths for line in lines]),
    ]
    body = []
    for line in lines:
        spread = f" ± {statistics.stdev(line.seeds):.1f}" if len(line.seeds) > 1 else ""
        at_longest = line.points[longest].value if longest in line.points else None
        body.append(
            [
                line.name,
                _cell(line.trained) + _other_lengths(line.trained_lengths, usual[0]),
                _cell(line.longer) + spread + _other_lengths(line.longer_lengths, usual[1]),
                _cell(at_longest),
            ]
        )
    trained = sorted({line.max_length for line in lines})
    frequent = _most_frequent(task)
    told = "" if frequent is None else f" The most frequent symbol alone scores {frequent:g} %."
    seeds = "; means over seeds ± standard deviation" * any(len(one.seeds) > 1 for one in lines)
    caption = (
        f"{task}, causal decoder: percentage of correct symbols in the answers, averaged over the "
        f"measured lengths; trained up to length {' or '.join(map(str, trained))}{seeds}.{told}"
    )
    header = ["", "trained lengths", "longer lengths", f"length {longest}"]
    return Table(caption, header, body)


def _usual(lengths: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return the lengths that most lines have."""
    return collections.Counter(map(tuple, lengths)).most_common(1)[0][0]


def _other_lengths(lengths: Sequence[int], usual: Sequence[int]) -> str:
    """Return, in parentheses, the lengths of a mean if they are not the usual ones, or ""."""
    if not lengths or tuple(lengths) == tuple(usual):
        return ""
    if len(lengths) == 1:
        return f" (length {lengths[0]})"
    return f" ({len(lengths)} lengths, {lengths[0]} to {lengths[-1]})"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _most_frequent(task: str) -> float | None:
    """Return the accuracy of always giving the most frequent symbol, or None if it is unknown.

    The accuracy is known only for tasks with their default settings.
    """
    return MOST_FREQUENT.get(task.partition(",")[0])


def accuracy_text(results: Results) -> str:
    """Format the accuracy tables of all tasks for the terminal."""
    found = accuracy_lines(results)
    return "\n\n".join(accuracy_table(task, lines).plain() for task, lines in found.items())


def pictures(results: Results) -> list[Picture]:
    """Draw accuracy against length, and also a heat map if there are several tasks."""
    found = accuracy_lines(results)
    if not found:
        return []
    best = "; ".join(f"{lines[0].name} on {task}" for task, lines in found.items())
    curves = Picture(
        name="length_accuracy",
        caption="Accuracy against input length, causal decoder; dotted: the longest "
        "training length, and the accuracy of always giving the most frequent symbol.",
        alt=f"Line charts of accuracy against length. Best beyond the training lengths: {best}.",
        image=charts.drawn(*_curves(found)),
        panels=min(_COLUMNS, len(found)),
    )
    if len(found) == 1:
        return [curves]
    heat = Picture(
        name="length_accuracy_map",
        caption="Mean accuracy in percent over the measured lengths beyond the training lengths, "
        "coloured from the accuracy of the most frequent symbol to 100; "
        "*: over other lengths than those of most lines.",
        alt=f"Heat map of mean accuracy by task and arm. Best: {best}.",
        image=charts.drawn(*_heat_map(found)),
    )
    return [curves, heat]


def write_figure(results: Results, path: epath.Path) -> None:
    """Write a PNG of accuracy against length."""
    path.write_bytes(charts.png(*_curves(accuracy_lines(results))))


def _curves(
    found: Mapping[str, Sequence[AccuracyLine]],
) -> tuple[Callable[[Figure], None], float, float]:
    """Return a function that draws the panels, and the width and height of the figure in inches."""
    names = sorted({line.name for lines in found.values() for line in lines})
    styles = _styles(names)
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)

    def draw(figure: Figure) -> None:
        figure.suptitle("causal decoder", size="medium")
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in panels[len(found) :]:
            axes.remove()
        panels = panels[: len(found)]
        for axes, (task, lines) in zip(panels, found.items(), strict=True):
            _draw(axes, task, lines, styles)
        charts.legend_below(figure, panels)

    width, height = charts.size(names)
    if columns == 1:
        return draw, width, height
    return draw, 3.2 * columns, 2.4 * rows + height - 3.4


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a style for each name; names that differ only after a comma share their colour."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition(" (")[0].partition(", ")[0], []).append(name)
    first = charts.styles(list(groups))
    return {
        name: charts.varied(first[group], number - 1) if number else first[group]
        for group, members in groups.items()
        for number, name in enumerate(sorted(members, key=len))
    }


def _draw(
    axes: Axes, task: str, lines: Sequence[AccuracyLine], styles: dict[str, dict[str, Any]]
) -> None:
    for line in lines:
        style = {**styles[line.name], "marker": "" if len(line.points) > 30 else "."}
        lengths = list(line.points)
        values = [point.value for point in line.points.values()]
        axes.plot(lengths, values, label=line.name, **style)
        spread = [point.spread or 0.0 for point in line.points.values()]
        if any(spread):
            low = [value - s for value, s in zip(values, spread, strict=True)]
            high = [value + s for value, s in zip(values, spread, strict=True)]
            colour = style["color"]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    frequent = _most_frequent(task)
    if frequent is not None:
        axes.axhline(frequent, color=charts.GREY, linestyle=":", linewidth=1)
    charts.training_length(axes, [line.max_length for line in lines])
    axes.set_ylim(-2, 102)
    axes.set_title(task, loc="left")
    axes.set_xlabel("input length (symbols)")
    axes.set_ylabel("accuracy (%)")


def _heat_map(
    found: Mapping[str, Sequence[AccuracyLine]],
) -> tuple[Callable[[Figure], None], float, float]:
    """Draw the means beyond the training lengths, coloured from the most frequent symbol to 100 %.

    The first column is the accuracy of the most frequent symbol, if it is known.
    """
    names = sorted({line.name for lines in found.values() for line in lines})
    lines_of = {task: {line.name: line for line in lines} for task, lines in found.items()}
    usual = {task: _usual([line.longer_lengths for line in lines]) for task, lines in found.items()}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (task, lines) in enumerate(lines_of.items()):
            frequent = _most_frequent(task)
            if frequent is not None:
                axes.text(0.5, row + 0.5, f"{frequent:.0f}", ha="center", va="center")
            for column, name in enumerate(names, start=1):
                line = lines.get(name)
                if line is not None and line.longer is not None:
                    mark = "*" * bool(_other_lengths(line.longer_lengths, usual[task]))
                    _cell_of_map(axes, column, row, line.longer, frequent or 0.0, mark)
        axes.grid(False)
        axes.set_xlim(0, len(names) + 1)
        axes.set_ylim(len(found), 0)
        axes.set_yticks([row + 0.5 for row in range(len(found))], list(found))
        columns = [column + 0.5 for column in range(len(names) + 1)]
        axes.set_xticks(columns, labels, rotation=40, ha="right", rotation_mode="anchor")

    labels = [name.replace(" (", "\n(") for name in (_FREQUENT, *names)]
    inches = 0.08 * max(len(part) for label in labels for part in label.splitlines())
    left = max(0.09 * max(map(len, found)), 0.77 * inches - 0.25) + 0.3
    return draw, left + 0.55 * len(labels), 0.5 + 0.32 * len(found) + 0.65 * inches


def _cell_of_map(
    axes: Axes, column: int, row: int, value: float, frequent: float, mark: str
) -> None:
    import matplotlib

    share = min(1.0, max(0.0, (value - frequent) / (100 - frequent)))
    colour = matplotlib.colormaps["viridis"](share)
    corners = ([column, column + 1, column + 1, column], [row, row, row + 1, row + 1])
    axes.fill(*corners, color=colour, linewidth=0)
    ink = "#000000" if share > 0.55 else "#ffffff"
    centre = (column + 0.5, row + 0.5)
    axes.text(*centre, f"{value:.0f}{mark}", color=ink, ha="center", va="center")
