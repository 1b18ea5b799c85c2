"""Figures of accuracy by length on synthetic tasks: curves, and heat maps of tasks and arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from fire_lm.reporting import charts
from fire_lm.reporting.length_accuracy import (
    AccuracyLine,
    accuracy_lines,
    guesses,
    mean_of_guesses,
    other_lengths,
    usual_lengths,
)
from fire_lm.reporting.page import Picture
from fire_lm.results.folder import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Returns a mean accuracy of a line, or None, and the lengths that it is a mean over.
_Mean = Callable[[AccuracyLine], tuple[float | None, Sequence[int]]]

_COLUMNS = 3  # the number of panels side by side
# With more than this in one panel, markers hide the curves and take most of the file.
_MARKERS = 120
_UNREAD = "length and place alone"
_GUESS = "guess"  # the same, in a legend


def pictures(results: Results) -> list[Picture]:
    """Draw accuracy against length and, if there are several tasks, heat maps of their means."""
    found = accuracy_lines(results)
    if not found:
        return []
    best = "; ".join(f"{lines[0].name} on {task}" for task, lines in found.items())
    curves = Picture(
        name="length_accuracy",
        caption=f"Accuracy against input length, causal decoder{_bands(found)}; dotted: the "
        "longest training length; guess: the best answer from a symbol's length and place alone.",
        alt=f"Line charts of accuracy against length. Best beyond the training lengths: {best}.",
        image=charts.drawn(*_curves(found)),
        panels=min(_COLUMNS, len(found)),
    )
    return [curves] if len(found) == 1 else [curves, *_maps(found, best)]


def _bands(found: Mapping[str, Sequence[AccuracyLine]]) -> str:
    """Describe the bands around the lines, or return "" if every line is a single run."""
    several = any(line.runs > 1 for lines in found.values() for line in lines)
    return "; bands: standard deviation over seeds" * several


def _maps(found: Mapping[str, Sequence[AccuracyLine]], best: str) -> list[Picture]:
    """Draw a map of training lengths and one of longer lengths, and omit a map without values."""
    sides: dict[str, tuple[str, _Mean, str]] = {
        "length_accuracy_map_trained": (
            "training",
            lambda line: (line.trained, line.trained_lengths),
            "",
        ),
        "length_accuracy_map": (
            "longer",
            lambda line: (line.longer, line.longer_lengths),
            f" Best: {best}.",
        ),
    }
    return [
        Picture(
            name=name,
            caption=f"Mean accuracy in percent over all {lengths} lengths from the first to the "
            "last measured one. Colours run from the best answer from length and place alone (0 if "
            "it is unknown) to 100; * marks a mean over other lengths than those of most arms.",
            alt=f"Heat map of mean accuracy over {lengths} lengths by task and arm.{note}",
            image=charts.drawn(*_heat_map(found, mean)),
            panels=2,
        )
        for name, (lengths, mean, note) in sides.items()
        if any(mean(line)[0] is not None for lines in found.values() for line in lines)
    ]


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
        figure.suptitle(f"causal decoder{_bands(found)}", size="medium")
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in panels[len(found) :]:
            axes.remove()
        panels = panels[: len(found)]
        for axes, (task, lines) in zip(panels, found.items(), strict=True):
            _draw(axes, task, lines, styles)
        charts.legend_below(figure, panels)

    width, height = charts.size([*names, _GUESS])
    if columns == 1:
        return draw, width, height
    return draw, 3.2 * columns, 2.4 * rows + height - 3.4


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a style for each name; the variants of an encoding share their colour."""
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
    marked = sum(len(line.points) for line in lines) <= _MARKERS
    for line in lines:
        style = {**styles[line.name], "markersize": 3 if marked else 0}
        lengths = list(line.points)
        values = [point.value for point in line.points.values()]
        axes.plot(lengths, values, label=line.name, **style)
        spread = [point.spread or 0.0 for point in line.points.values()]
        if any(spread):
            low = [value - s for value, s in zip(values, spread, strict=True)]
            high = [value + s for value, s in zip(values, spread, strict=True)]
            colour = style["color"]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    guessed = guesses(task, sorted({length for line in lines for length in line.points}))
    if guessed:
        (curve,) = axes.plot(list(guessed), list(guessed.values()), label=_GUESS)
        curve.set(color=charts.GREY, linestyle="-.", linewidth=1)
    charts.training_length(axes, [line.max_length for line in lines])
    axes.set_ylim(-2, 102)
    axes.set_title(task, loc="left")
    axes.set_xlabel("input length (symbols)")
    axes.set_ylabel("accuracy (%)")


def _heat_map(
    found: Mapping[str, Sequence[AccuracyLine]], mean: _Mean
) -> tuple[Callable[[Figure], None], float, float]:
    """Return a function that draws a map, and the width and height of the figure in inches.

    The first column is the best answer from length and place alone, if it is known.
    """
    names = sorted({line.name for lines in found.values() for line in lines})
    labels = [name.replace(" (", "\n(") for name in (_UNREAD, *names)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (task, lines) in enumerate(found.items()):
            means = {line.name: mean(line) for line in lines}
            usual = usual_lengths([lengths for _, lengths in means.values()])
            unread = mean_of_guesses(task, usual)
            if unread is not None:
                axes.text(0.5, row + 0.5, f"{unread:.0f}", ha="center", va="center")
            for name, (value, lengths) in means.items():
                if value is not None:
                    mark = "*" * bool(other_lengths(lengths, usual))
                    _cell(axes, 1 + names.index(name), row, value, unread or 0.0, mark)
        axes.grid(False)
        axes.set_xlim(0, len(labels))
        axes.set_ylim(len(found), 0)
        axes.set_yticks([row + 0.5 for row in range(len(found))], list(found))
        columns = [column + 0.5 for column in range(len(labels))]
        axes.set_xticks(columns, labels, rotation=40, ha="right", rotation_mode="anchor")

    # A character is 0.08 inches wide. The labels of columns are rotated by 40 degrees: 0.77 of
    # their length extends to the left of their column, and 0.65 of it downwards.
    label = 0.08 * max(len(part) for text in labels for part in text.split("\n"))
    left = max(0.09 * max(map(len, found)), 0.77 * label - 0.25) + 0.3
    return draw, left + 0.55 * len(labels), 0.5 + 0.32 * len(found) + 0.65 * label


def _cell(axes: Axes, column: int, row: int, value: float, unread: float, mark: str) -> None:
    import matplotlib

    share = min(1.0, max(0.0, (value - unread) / max(1e-9, 100 - unread)))
    colour = matplotlib.colormaps["viridis"](share)
    corners = ([column, column + 1, column + 1, column], [row, row, row + 1, row + 1])
    axes.fill(*corners, color=colour, linewidth=0)
    ink = "#000000" if share > 0.55 else "#ffffff"
    centre = (column + 0.5, row + 0.5)
    axes.text(*centre, f"{value:.0f}{mark}", color=ink, ha="center", va="center")
