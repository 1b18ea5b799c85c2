"""The one figure of series: styles, legends, and labels that cover nothing."""

from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from overprinting import overprinted

from fire_lm.reporting import charts, figure
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.series import Series


def series(name: str, variant: str = "") -> Series:
    points = {n: Sample({"run": 1.0 + n}, error=0.1) for n in (64, 128)}
    return Series(f"{name} ({variant})" if variant else name, points, name, variant, 64)


LINES = [series("rope"), series("rope", "yarn"), series("fire")]


def drawn(*panels: list[Series]) -> Figure:
    axis = figure.Axis("length", "loss", lengths=True)
    shown = [figure.Panel("losses", lines, axis) for lines in panels]
    styles = figure.line_styles(one for lines in panels for one in lines)
    draw, width, height = figure.drawing(shown, styles)
    canvas = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    draw(canvas)
    canvas.draw_without_rendering()
    return canvas


def test_the_legend_shows_that_the_line_of_a_variant_is_dashed():
    """The marker in the middle of a handle would hide a single gap."""
    (legend,) = drawn(LINES).legends
    (line,) = (line for line in legend.findobj(Line2D) if line.get_linestyle() == "--")
    assert isinstance(line, Line2D)
    length, marker = np.ptp(np.asarray(line.get_xdata())), 4 + 1
    gaps = np.cumsum(np.tile(line._dash_pattern[1], 20))[::2]  # type: ignore[attr-defined]
    visible = [gap for gap in gaps if gap < length and abs(gap - length / 2) > marker]
    assert len(visible) >= 2, "a gap on each side of the marker"


def test_series_of_an_arm_share_a_colour_and_the_plain_one_is_solid():
    styles = figure.line_styles(LINES)
    assert styles["rope"]["color"] == styles["rope (yarn)"]["color"] != styles["fire"]["color"]
    assert styles["rope"]["linestyle"] == "-" != styles["rope (yarn)"]["linestyle"]
    variants = [series("rope", variant) for variant in ("", "yarn", "pi", "ntk")]
    own = figure.line_styles(variants).values()
    assert len({style["color"] for style in own}) == 1
    assert len({(style["marker"], str(style["linestyle"])) for style in own}) == 4
    alone = figure.line_styles(LINES[1:2], arms=["rope"])
    assert alone["rope (yarn)"]["linestyle"] != "-", "a changed evaluation is dashed"


def test_beside_means_over_seeds_in_another_panel_a_single_run_has_no_bars():
    """The caption describes the bars of all panels in one sentence."""
    seeds = [
        Series("fire", {64: Sample({"a": 1.0, "b": 2.0}), 128: Sample({"a": 1.0})}, "fire", "", 64)
    ]

    def bars(axes):
        return axes.containers[0][2][0].get_segments()

    heights = [
        max(np.ptp(segment[:, 1]) for segment in bars(axes) if len(segment))
        for axes in drawn(seeds, LINES[:1]).axes
    ]
    assert heights == [pytest.approx(2**0.5), 0.0]
    (alone,) = drawn(LINES[:1]).axes
    assert np.ptp(bars(alone)[0][:, 1]) == pytest.approx(0.2)


def test_a_line_is_broken_where_it_would_join_means_over_different_runs():
    falling = {"a": 2.0, "b": 1.0}
    points = {64: Sample(falling), 128: Sample(falling), 256: Sample({"a": 1.9})}
    (axes,) = drawn([Series("fire", points, "fire", "", 64)]).axes
    (line,) = axes.containers[0].lines[:1]
    xs, ys = line.get_data()
    assert list(xs) == [64, 128, 256, 256] and np.isnan(ys[2])
    assert list(ys[[0, 1, 3]]) == [1.5, 1.5, 1.9]


CURVES = {
    "falls from the top": [100.0, 99.0, 60.0, 30.0],
    "stays at the top": [100.0, 100.0, 100.0, 100.0],
}
LENGTHS = [10, 40, 100, 500]


def chart(lengths: Sequence[int]) -> Figure:
    drawing = Figure(figsize=charts.size(list(CURVES)), layout="constrained")
    axes = drawing.subplots()
    for name, values in CURVES.items():
        axes.plot(LENGTHS, values, label=name)
    charts.training_length(axes, lengths)
    charts.legend_below(drawing, [axes])
    return drawing


@pytest.mark.parametrize("lengths", [[40], [40, 50], [500]])
def test_training_lengths_are_named_where_nothing_is_drawn(lengths):
    drawing = chart(lengths)
    assert overprinted(drawing) == []
    *names, trained = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert names == list(CURVES) and trained == f"trained: {', '.join(map(str, lengths))}"


def test_labels_that_cover_something_are_found():
    drawing = chart([40])
    (axes,) = drawing.axes
    axes.text(20, 99, "on a curve", va="center")
    axes.text(100, 80, "one"), axes.text(100, 80, "other")
    axes.text(490, 50, "beyond the edge")
    axes.fill_between(LENGTHS, 20, 30)
    axes.text(20, 25, "on a band", va="center")
    drawing.legend(["in a panel"], loc="center")
    assert overprinted(drawing) == [
        "on a curve", "beyond the edge", "on a band", "one and other", "legend"
    ]  # fmt: skip
