"""The one figure of series: panels of lines with bars or bands, and a legend below them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture
from fire_lm.reporting.series import Series, have_spread, lengths_of, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3  # the number of panels side by side
Style = dict[str, Any]  # the arguments of matplotlib for a line


def line_styles(series: Iterable[Series], arms: Sequence[str] = ()) -> dict[str, Style]:
    """Return the style of each series by its name.

    Series of an arm share their colour and differ in markers and dashes. The line of the arm as it
    is, without a variant, is solid.

    Args:
      series: The series of all figures in which an arm is to have the same style.
      arms: All arms, which are also names of series, in the order of their colours; by default,
        the arms of the series.
    """
    names = {arm: {arm: (False, len(arm), arm)} for arm in arms}
    for one in series:
        names.setdefault(one.arm, {})[one.name] = bool(one.variant), len(one.name), one.name
    colours = charts.styles(list(arms) or sorted(names))
    return {
        name: charts.varied(colours[arm], number - 1) if number else colours[arm]
        for arm, of_arm in names.items()
        for number, name in enumerate(sorted(of_arm, key=lambda name: of_arm[name]))
    }


@dataclasses.dataclass(frozen=True)
class Axis:
    """The axes of panels.

    Attributes:
      x: The label of the x axis.
      y: The label of the y axis.
      lengths: Whether x is a length, with a tick at each and a logarithmic scale.
      nats: Whether y is a loss in nats per token, with an axis of perplexity on the right.
      limits: The lowest and the highest y, or None.
      within: Limits that apply only where errors extend beyond them.
      adjust: What else is done to the axes, or None.
    """

    x: str
    y: str
    lengths: bool = False
    nats: bool = False
    limits: tuple[float, float] | None = None
    within: tuple[float, float] | None = None
    adjust: Callable[[Axes], None] | None = None


@dataclasses.dataclass(frozen=True)
class Panel:
    """Lines of a figure.

    Attributes:
      title: The title, or "".
      series: The series, in the order in which they are drawn.
      axis: The axes.
      errors: How errors are drawn: as "bars", as "bands" around lines of many points, as bands of
        "seeds" alone, or not at all, "".
      trained: The training lengths, which dotted lines mark.
      guess: What can be reached without reading, by x; {} if it is unknown.
    """

    title: str
    series: Sequence[Series]
    axis: Axis
    errors: Literal["bars", "bands", "seeds", ""] = "bars"
    trained: Sequence[int] = ()
    guess: Mapping[int, float] = dataclasses.field(default_factory=dict)


GUESS = "guess"  # the label of `Panel.guess`
# With more points than this in a panel, markers hide the curves and take most of the file.
_MARKERS = 120


def picture(
    name: str,
    caption: str,
    alt: str,
    panels: Sequence[Panel],
    styles: Mapping[str, Style],
    columns: int = COLUMNS,
    note: str = "",
) -> Picture:
    """Draw panels as `drawing` does; the other arguments are those of `Picture`."""
    image = charts.drawn(*drawing(panels, styles, columns, note))
    return Picture(charts.slug(name), caption, alt, image, min(columns, len(panels)))


def drawing(
    panels: Sequence[Panel], styles: Mapping[str, Style], columns: int = COLUMNS, note: str = ""
) -> tuple[Callable[[Figure], None], float, float]:
    """Return a function that draws panels, and the width and height of the figure in inches.

    There are `columns` panels side by side. `note` stands above them.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    series = [one for panel in panels for one in panel.series]

    def draw(figure: Figure) -> None:
        if note:
            figure.suptitle(note, size="medium")
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in places[len(panels) :]:
            axes.remove()
        for axes, panel in zip(places, panels, strict=False):
            draw_panel(axes, panel, styles, have_spread(series))
        charts.legend_below(figure, places[: len(panels)])

    guess = [GUESS] * any(panel.guess for panel in panels)
    width, height = charts.size([*(one.name for one in series), *guess])
    if columns > 1:
        return draw, min(3.2 * columns, 10.0), 2.4 * rows + height - 3.4
    return draw, width, height + 3.6 * (rows - 1)


def draw_panel(axes: Axes, panel: Panel, styles: Mapping[str, Style], several: bool) -> None:
    """Draw the lines of a panel, its axes, and its title.

    `several` states whether the figure has means over several seeds.
    """
    marked = sum(len(one.points) for one in panel.series) <= _MARKERS
    for one in panel.series:
        style = {**styles[one.name], "label": one.name}
        xs, values, errors = _broken(one, _errors(panel, one, several))
        if panel.errors == "bars":
            axes.errorbar(xs, values, yerr=errors, markersize=4, capsize=2, **style)
            continue
        axes.plot(xs, values, **{**style, "markersize": 3 if marked else 0})
        if errors.any():
            band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
            axes.fill_between(xs, values - errors, values + errors, **band)
    if panel.guess:
        (curve,) = axes.plot(list(panel.guess), list(panel.guess.values()), label=GUESS)
        curve.set(color=charts.GREY, linestyle="-.", linewidth=1)
    _set_axes(axes, panel)


def _broken(series: Series, errors: np.ndarray) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Return xs, means and errors, with NaN between means over different runs.

    A line between two such means would show a difference of runs as one of the axis.
    """
    xs, means, before = [], [], None
    for (x, point), error in zip(series.points.items(), errors, strict=True):
        if before not in (None, point.values.keys()):
            xs.append(x)
            means.append((np.nan, 0.0))
        xs.append(x)
        means.append((point.mean, error))
        before = point.values.keys()
    values, errors = np.array(means, float).reshape(-1, 2).T
    return xs, values, errors


def _errors(panel: Panel, series: Series, several: bool) -> np.ndarray:
    """Return the drawn error of each point, 0 where there is none.

    The bars of a figure never mix errors of different kinds: beside means over seeds, in any panel,
    single runs have none.
    """
    points = series.points.values()
    if not panel.errors:
        return np.zeros(len(points))
    spreads = np.array([point.spread or 0.0 for point in points])
    texts = np.nan_to_num([point.error for point in points])
    if panel.errors == "bars":
        return spreads if several else texts
    return np.where(spreads, spreads, texts) if panel.errors == "bands" else spreads


def _set_axes(axes: Axes, panel: Panel) -> None:
    axis = panel.axis
    if axis.lengths and (lengths := lengths_of(panel.series)):
        charts.length_axis(axes, lengths)
        axes.tick_params("x", labelrotation=40 if len(lengths) > 5 else 0)
    if axis.adjust:
        axis.adjust(axes)  # before lines and limits, which belong to a scale
    if panel.trained:
        charts.training_length(axes, panel.trained)
    if axis.within:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, axis.within[0]), min(high, axis.within[1]))
    if axis.limits:
        axes.set_ylim(*axis.limits)
    axes.set_xlabel(axis.x)
    axes.set_ylabel(axis.y)
    if axis.nats:
        right = axes.secondary_yaxis("right", functions=(_exp, _log))
        right.set_ylabel("perplexity")
    axes.set_title(panel.title, loc="left")


def _exp(nats: ArrayLike) -> np.ndarray:
    return np.exp(np.minimum(nats, 700.0))  # matplotlib also evaluates values far beyond the limits


def _log(perplexity: ArrayLike) -> np.ndarray:
    return np.log(np.maximum(perplexity, 1e-300))


def dotted(trained: Iterable[int]) -> str:
    """Return the part of a caption that explains dotted lines at the training lengths."""
    lengths = list(map(str, sorted(set(trained))))
    return f"dotted: the training length{'s' * (len(lengths) > 1)}, {listed(lengths)}"


def band(series: Iterable[Series]) -> str:
    """Return the part of a caption that explains bands."""
    alone = {point.runs == 1 for one in series for point in one.points.values()}
    if alone == {True}:
        return "standard error over text"
    of_alone = " (for a single run, standard error over text)" * (True in alone)
    return f"standard deviation over seeds{of_alone}"


def ends(panels: Iterable[Panel], digits: int) -> str:
    """Describe the last value of each line in each panel, for readers who cannot see it."""
    ranges = [
        f"{panel.title}: " * bool(panel.title)
        + ", ".join(
            f"{one.name} {list(one.points.values())[-1].mean:.{digits}f}"
            for one in panel.series
            if one.points
        )
        for panel in panels
    ]
    return "; ".join(ranges)
