"""Pictures of scores on text-to-text tasks against input length, exercise size, and step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture
from fire_lm.reporting.seeds import Mean
from fire_lm.reporting.task_columns import Column
from fire_lm.reporting.task_lines import SuiteScores, TaskLine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = 3  # the number of panels side by side
_Points = Mapping[str, Mapping[int, Mean]]  # by line and by the value on the x axis


def curves(scores: SuiteScores) -> list[Picture]:
    """Draw scores against input length and against exercise size, with a panel for each task."""
    return [
        *_against(scores, "length", "input length (tokens)", lambda column: column.length),
        *_against(scores, "size", "size of the exercise", lambda column: column.size),
    ]


def _against(
    scores: SuiteScores, what: str, label: str, value: Callable[[Column], int | None]
) -> list[Picture]:
    """Return a list with a picture of the tasks that have several x values, or [] if none has."""
    panels: dict[str, dict[str, dict[int, Mean]]] = {}
    metrics: dict[str, str] = {}
    for line in scores.lines:
        for column in scores.columns:
            x = value(column)
            if x is not None and column in line.scores:
                title = column.task if what == "size" else f"{column.task}, {column.split}"
                points = panels.setdefault(title, {}).setdefault(line.name, {})
                points[x] = line.scores[column]
                metrics[title] = column.metric
    panels = {
        title: lines
        for title, lines in panels.items()
        if len({x for points in lines.values() for x in points}) > 1
    }
    if not panels:
        return []
    marked = [run.train_length for line in scores.lines for run in line.runs]
    trained = marked if what == "length" else []

    def draw(axes: Axes, title: str) -> None:
        _draw(axes, panels[title], _styles(scores))
        axes.set_xlabel(label)
        axes.set_ylabel(f"{metrics[title]} (%)")
        ticks = sorted({x for points in panels[title].values() for x in points})
        if ticks[-1] >= 8 * ticks[0]:
            axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.tick_params("x", labelrotation=40 if len(ticks) > 5 else 0)
        charts.training_length(axes, trained)

    dotted = "; dotted: the training length" * bool(trained)
    name = f"{scores.suite or 'task'}_by_{what}"
    caption = f"Scores against the {label}; bars: {_bars(panels)}{dotted}."
    return [_picture(scores, name, caption, panels, draw)]


def by_step(scores: SuiteScores) -> list[Picture]:
    """Draw scores against the step, with a panel for each column that has several steps."""
    panels: dict[str, dict[str, dict[int, Mean]]] = {}
    metrics: dict[str, str] = {}
    for column in scores.columns:
        lines = {
            line.name: dict(line.history[column]) for line in scores.lines if column in line.history
        }
        if any(len(points) > 1 for points in lines.values()):
            panels[column.title] = lines
            metrics[column.title] = column.metric
    if not panels:
        return []

    def draw(axes: Axes, title: str) -> None:
        _draw(axes, panels[title], _styles(scores))
        axes.set_xlabel("step")
        axes.set_ylabel(f"{metrics[title]} (%)")

    name = f"{scores.suite or 'task'}_by_step"
    caption = f"Scores of all evaluated checkpoints; bars: {_bars(panels)}."
    return [_picture(scores, name, caption, panels, draw)]


def _picture(
    scores: SuiteScores,
    name: str,
    caption: str,
    panels: Mapping[str, _Points],
    draw_panel: Callable[[Axes, str], None],
) -> Picture:
    names = sorted({name for lines in panels.values() for name in lines})
    columns = min(_PANELS, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: Figure) -> None:
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in places[len(panels) :]:
            axes.remove()
        for axes, title in zip(places, panels, strict=False):
            draw_panel(axes, title)
            axes.set_title(title, loc="left")
        charts.legend_below(figure, places[: len(panels)])

    width, height = charts.size(names)
    if columns > 1:
        width, height = 3.2 * columns, 2.4 * rows + height - 3.4
    return Picture(
        name=charts.slug(name),
        caption=caption,
        alt=f"Line charts of task scores. {_ends(panels)}",
        image=charts.drawn(draw, width, height),
        panels=columns,
    )


def _draw(axes: Axes, lines: _Points, styles: Mapping[str, dict[str, Any]]) -> None:
    seeds = _over_seeds(lines)
    for name, points in lines.items():
        xs = sorted(points)
        errors = [points[x].spread if seeds else points[x].text_error for x in xs]
        drawn = [0.0 if error is None or math.isnan(error) else error for error in errors]
        values = [points[x].value for x in xs]
        axes.errorbar(xs, values, yerr=drawn, label=name, markersize=4, capsize=2, **styles[name])
    low, high = axes.get_ylim()  # a deviation over seeds may extend beyond 100 % or below 0
    negative = any(point.value < 0 for points in lines.values() for point in points.values())
    axes.set_ylim(low if negative else max(low, -5), min(high, 105))


def _styles(scores: SuiteScores) -> dict[str, dict[str, Any]]:
    """Return the style of each line; the lines of a model have the same colour."""
    models = charts.styles(sorted({line.model for line in scores.lines}))
    of_model: dict[str, list[TaskLine]] = {}
    for line in sorted(scores.lines, key=lambda line: (bool(line.variant), line.name)):
        of_model.setdefault(line.model, []).append(line)
    return {
        line.name: charts.varied(models[model], number - 1) if number else models[model]
        for model, lines in of_model.items()
        for number, line in enumerate(lines)
    }


def _over_seeds(lines: _Points) -> bool:
    return any(point.spread is not None for points in lines.values() for point in points.values())


def _bars(panels: Mapping[str, _Points]) -> str:
    kinds = {_over_seeds(lines) for lines in panels.values()}
    if kinds == {False}:
        return "standard error over examples, one run each"
    return "standard deviation over seeds" + ", or standard error over examples" * (len(kinds) > 1)


def _ends(panels: Mapping[str, _Points]) -> str:
    """Describe the last value of each line in each panel."""
    told: list[str] = []
    for title, lines in panels.items():
        last: Sequence[tuple[str, Mean]] = [
            (name, points[max(points)]) for name, points in lines.items() if points
        ]
        ends = ", ".join(f"{name} {point.value:.1f}" for name, point in last)
        told.append(f"{title}, last values: {ends}.")
    return " ".join(told)
