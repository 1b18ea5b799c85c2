"""Figures of accuracy by length on synthetic tasks: curves, and heat maps of tasks and arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from fire_lm.reporting import charts
from fire_lm.reporting.length_accuracy import (
    AccuracyLine,
    accuracy_lines,
    most_frequent,
    other_lengths,
    usual_lengths,
)
from fire_lm.reporting.page import Picture
from fire_lm.results.folder import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3  # the number of panels side by side
_FREQUENT = "most frequent symbol"


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
    return [curves] if len(found) == 1 else [curves, *_maps(found, best)]


def _maps(found: Mapping[str, Sequence[AccuracyLine]], best: str) -> list[Picture]:
    note = (
        "coloured from the accuracy of the most frequent symbol to 100; "
        "*: over other lengths than those of most lines."
    )
    trained = Picture(
        name="length_accuracy_map_trained",
        caption=f"Mean accuracy in percent over the measured training lengths, {note}",
        alt="Heat map of mean accuracy over training lengths by task and arm.",
        image=charts.drawn(
            *_heat_map(found, lambda line: (line.trained, tuple(line.trained_lengths)))
        ),
    )
    longer = Picture(
        name="length_accuracy_map",
        caption=f"Mean accuracy in percent over the measured longer lengths, {note}",
        alt=f"Heat map of mean accuracy over longer lengths by task and arm. Best: {best}.",
        image=charts.drawn(
            *_heat_map(found, lambda line: (line.longer, tuple(line.longer_lengths)))
        ),
    )
    return [trained, longer]


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
    frequent = most_frequent(task)
    if frequent is not None:
        axes.axhline(frequent, color=charts.GREY, linestyle=":", linewidth=1)
    charts.training_length(axes, [line.max_length for line in lines])
    axes.set_ylim(-2, 102)
    axes.set_title(task, loc="left")
    axes.set_xlabel("input length (symbols)")
    axes.set_ylabel("accuracy (%)")


def _heat_map(
    found: Mapping[str, Sequence[AccuracyLine]],
    mean: Callable[[AccuracyLine], tuple[float | None, Sequence[int]]],
) -> tuple[Callable[[Figure], None], float, float]:
    """Return a function that draws a map, and the width and height of the figure in inches.

    The first column is the accuracy of the most frequent symbol, if it is known.

    Args:
      found: The lines of each task.
      mean: A function that returns a mean accuracy of a line and the lengths of the mean.
    """
    names = sorted({line.name for lines in found.values() for line in lines})

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (task, lines) in enumerate(found.items()):
            frequent = most_frequent(task)
            if frequent is not None:
                axes.text(0.5, row + 0.5, f"{frequent:.0f}", ha="center", va="center")
            means = {line.name: mean(line) for line in lines}
            usual = usual_lengths([lengths for _, lengths in means.values()])
            for name, (value, lengths) in means.items():
                if value is not None:
                    mark = "*" * bool(other_lengths(lengths, usual))
                    _cell(axes, 1 + names.index(name), row, value, frequent or 0.0, mark)
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


def _cell(axes: Axes, column: int, row: int, value: float, frequent: float, mark: str) -> None:
    import matplotlib

    share = min(1.0, max(0.0, (value - frequent) / (100 - frequent)))
    colour = matplotlib.colormaps["viridis"](share)
    corners = ([column, column + 1, column + 1, column], [row, row, row + 1, row + 1])
    axes.fill(*corners, color=colour, linewidth=0)
    ink = "#000000" if share > 0.55 else "#ffffff"
    centre = (column + 0.5, row + 0.5)
    axes.text(*centre, f"{value:.0f}{mark}", color=ink, ha="center", va="center")
