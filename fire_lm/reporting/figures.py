"""Pictures of losses against length, position and training tokens, as means over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture
from fire_lm.reporting.seeds import (
    Line,
    Mean,
    at_step,
    line_name,
    position_lines,
    training_lines,
)
from fire_lm.results.folder import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def line_styles(results: Results) -> dict[str, dict[str, Any]]:
    """Return the style of each arm and variant, which is the same in all figures.

    The variants of an arm have the same colour but different markers and dashes, and so do its
    steps in figures of losses by position.
    """
    arms = charts.styles(sorted(results.arms()))
    arm_of = {run.run: run.arm for run in results.runs}
    found = dict(arms)
    variants: dict[str, dict[str, None]] = {}
    scored = [(row.run, row.variant) for row in results.losses]
    scored += [(row.run, row.variant) for row in results.positions]
    for run, variant in scored:
        if variant and run in arm_of:
            variants.setdefault(arm_of[run], {})[variant] = None
    for arm, of_arm in variants.items():
        for number, variant in enumerate(of_arm):
            found[line_name(arm, variant)] = charts.varied(arms[arm], number)
    steps: dict[str, dict[int, None]] = {}
    for row in results.positions:
        if row.run in arm_of:
            steps.setdefault(line_name(arm_of[row.run], row.variant), {})[row.step] = None
    for name, of_line in steps.items():
        for number, step in enumerate(of_line if len(of_line) > 1 else ()):
            found[at_step(name, step, True)] = charts.varied(found[name], number)
    return found


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel that shows losses against length on one text.

    Attributes:
      title: The name of the text.
      lines: The lines of the panel.
      apart: The difference between the scored rows that makes nats per token incomparable, so that
        the panel shows bits per byte; "" if the panel shows nats per token.
    """

    title: str
    lines: Sequence[Line]
    apart: str

    @property
    def nats(self) -> bool:
        return not self.apart


def losses(results: Results, text: str, lines: Sequence[Line], apart: str) -> Picture:
    """Draw loss against length, as in Figures 1, 2, 6 and 7 of the FIRE paper."""
    panel = Panel(text, lines, apart)
    lengths = sorted({length for line in lines for length in line.nats})
    longest = max(lengths)
    at_longest = ", ".join(
        f"{line.name} {line.losses(panel.nats)[longest].value:.3f}"
        for line in lines
        if longest in line.nats
    )
    unit = "nats per token" if panel.nats else "bits per byte"
    return Picture(
        name=charts.slug(f"losses {text}"),
        caption=f"Loss against length on {text}, {min(lengths)} to {longest} tokens; bars: "
        f"{spread_of(lines)}; {_dotted([line.train_length for line in lines])}.",
        alt=f"Line chart of loss ({unit}) on {text} at lengths {min(lengths)} to {longest}. "
        f"At {longest}, best first: {at_longest}.",
        image=charts.drawn(*_drawing(results, [panel])),
    )


def losses_png(results: Results, panels: Sequence[Panel]) -> bytes:
    """Draw loss against length as a PNG, with the panels in one column."""
    return charts.png(*_drawing(results, panels))


def _drawing(
    results: Results, panels: Sequence[Panel]
) -> tuple[Callable[[Figure], None], float, float]:
    """Return a function that draws the panels, and the width and height of the figure in inches."""
    styles = line_styles(results)

    def draw(figure: Figure) -> None:
        for axes, panel in zip(
            figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
        ):
            _draw_losses(axes, panel, styles)
        charts.legend_below(figure, figure.axes)

    width, height = charts.size([line.name for panel in panels for line in panel.lines])
    return draw, width, height + 3.6 * (len(panels) - 1)


def _draw_losses(axes: Axes, panel: Panel, styles: dict[str, dict[str, Any]]) -> None:
    """Draw one panel; its title explains the error bars, because a PNG has no caption."""
    over_seeds = have_spread(panel.lines)
    drawn: dict[str, int] = {}
    for line in panel.lines:
        name = line_name(line.arm, line.variant)
        style = charts.varied(styles[name], drawn[name]) if name in drawn else styles[name]
        drawn[name] = drawn.get(name, -1) + 1
        points = line.losses(panel.nats)
        errors = [
            (point.spread or 0.0) if over_seeds else point.text_error for point in points.values()
        ]
        values = [point.value for point in points.values()]
        axes.errorbar(
            list(points), values, yerr=errors, label=line.name, markersize=4, capsize=2, **style
        )
    charts.length_axis(axes, sorted({length for line in panel.lines for length in line.nats}))
    charts.training_length(axes, [line.train_length for line in panel.lines])
    axes.set_ylabel("log perplexity (nats per token)" if panel.nats else "bits per byte")
    if panel.nats:
        _perplexity_axis(axes)
    apart = f"; different {panel.apart}" * bool(panel.apart)
    axes.set_title(f"{panel.title}{apart}\nbars: {spread_of(panel.lines)}", loc="left")


def _dotted(trained: Sequence[int]) -> str:
    *others, last = map(str, sorted(set(trained)))
    told = f"{', '.join(others)} and {last}" if others else last
    return f"dotted: the training length{'s' * bool(others)}, {told}"


def _band(lines: Mapping[str, Sequence[tuple[float, Mean]]]) -> str:
    """Describe the bands around the lines in a figure of losses by position."""
    alone = {point.spread is None for points in lines.values() for _, point in points}
    if alone == {True}:
        return "standard error over text"
    of_alone = " (for a single run, standard error over text)" * (True in alone)
    return f"standard deviation over seeds{of_alone}"


def have_spread(lines: Sequence[Line]) -> bool:
    """Return whether any line is a mean over several seeds."""
    return any(point.spread is not None for line in lines for point in line.nats.values())


def spread_of(lines: Sequence[Line]) -> str:
    """Describe the kind of error that the bars of the lines show."""
    counts = sorted({point.runs for line in lines for point in line.nats.values()})
    if counts == [1]:
        return "standard error over text, one run each"
    told = " or ".join(str(count) for count in counts if count > 1)
    alone = ", none for a single run" if 1 in counts else ""
    return f"standard deviation over {told} seeds{alone}"


def positions(results: Results) -> list[Picture]:
    """Draw loss by token position, as in Figures 2 and 3 of arXiv:2310.13017."""
    styles, found = line_styles(results), []
    trained = [run.train_length for run in results.runs]
    for text, lines in position_lines(results).items():

        def draw(figure: Figure, lines: dict[str, list[tuple[float, Mean]]] = lines) -> None:
            axes = figure.subplots()
            for name, points in lines.items():
                places = [place for place, _ in points]
                values = [point.value for _, point in points]
                style = {**styles[name], "marker": ""}
                (curve,) = axes.plot(places, values, label=name, **style)
                errors = [
                    point.text_error if point.spread is None else point.spread
                    for _, point in points
                ]
                low = [v - error for v, error in zip(values, errors, strict=True)]
                high = [v + error for v, error in zip(values, errors, strict=True)]
                axes.fill_between(
                    places, low, high, color=curve.get_color(), alpha=0.15, linewidth=0
                )
            axes.set_xlabel("position in the sequence (tokens)")
            axes.set_ylabel("loss (nats per token)")
            _perplexity_axis(axes)
            charts.training_length(axes, trained)
            charts.legend_below(figure, [axes])

        ends = ", ".join(f"{name} {points[-1][1].value:.2f}" for name, points in lines.items())
        found.append(
            Picture(
                name=charts.slug(f"positions {text}"),
                caption=f"Loss by position, {text}. Lines: means over sequences in bins of "
                f"neighbouring positions; bands: {_band(lines)}; {_dotted(trained)}.",
                alt=f"Line chart of the mean loss by token position, {text}. "
                f"In the last bin: {ends}.",
                image=charts.drawn(draw, *charts.size(list(lines))),
            )
        )
    return found


def training(results: Results) -> list[Picture]:
    """Draw a picture of training losses for each combination of text and vocabulary."""
    return [
        _training(lines, line_styles(results), number)
        for number, lines in enumerate(training_lines(results))
    ]


def _training(
    lines: dict[str, list[tuple[float, Mean]]], styles: dict[str, dict[str, Any]], number: int
) -> Picture:
    lowest = min(point.value for points in lines.values() for _, point in points)
    start = max(points[0][1].value for points in lines.values())
    low, high = 0.97 * lowest, max(1.05 * lowest, min(start, 2.2 * lowest))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, points in lines.items():
            style = {**styles[name], "marker": ""}
            tokens = [count for count, _ in points]
            axes.plot(tokens, [point.value for _, point in points], label=name, **style)
        axes.set_ylim(low, high)
        axes.set_xlabel("training tokens")
        axes.set_ylabel("training loss (nats per token)")
        charts.legend_below(figure, [axes])

    ends = ", ".join(f"{name} {points[-1][1].value:.3f}" for name, points in lines.items())
    last = max(points[-1][0] for points in lines.values())
    cut = f"; losses above {high:.2f}, at the start of runs, are cut off" * (start > high)
    return Picture(
        name=f"training_{number + 1}" if number else "training",
        caption=f"Training loss of individual batches, averaged over seeds, up to {last:,.0f} "
        f"tokens{cut}.",
        alt=f"Line chart of training loss against tokens. Last values: {ends}.",
        image=charts.drawn(draw, *charts.size(list(lines))),
    )


def _perplexity_axis(axes: Axes) -> None:
    """Add a perplexity axis on the right side of axes whose y axis is in nats."""
    right = axes.secondary_yaxis("right", functions=(_exp, _log))
    right.set_ylabel("perplexity")


def _exp(nats: ArrayLike) -> np.ndarray:
    return np.exp(np.minimum(nats, 700.0))  # matplotlib also evaluates values far beyond the limits


def _log(perplexity: ArrayLike) -> np.ndarray:
    return np.log(np.maximum(perplexity, 1e-300))
