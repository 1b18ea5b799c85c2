"""Labels of figures cover neither curves nor each other."""

from collections.abc import Sequence

import pytest
from matplotlib.figure import Figure
from overprinting import overprinted

from fire_lm.reporting import charts

CURVES = {
    "falls from the top": [100.0, 99.0, 60.0, 30.0],
    "stays at the top": [100.0, 100.0, 100.0, 100.0],
}
LENGTHS = [10, 40, 100, 500]


def chart(lengths: Sequence[int]) -> Figure:
    figure = Figure(figsize=charts.size(list(CURVES)), layout="constrained")
    axes = figure.subplots()
    for name, values in CURVES.items():
        axes.plot(LENGTHS, values, label=name)
    charts.training_length(axes, lengths)
    charts.legend_below(figure, [axes])
    return figure


@pytest.mark.parametrize("lengths", [[40], [40, 50], [500]])
def test_training_lengths_are_named_where_nothing_is_drawn(lengths):
    figure = chart(lengths)
    assert overprinted(figure) == []
    *names, trained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == list(CURVES) and trained == f"trained: {', '.join(map(str, lengths))}"


def test_labels_that_cover_something_are_found():
    figure = chart([40])
    (axes,) = figure.axes
    axes.text(20, 99, "on a curve", va="center")
    axes.text(100, 80, "one"), axes.text(100, 80, "other")
    axes.text(490, 50, "beyond the edge")
    axes.fill_between(LENGTHS, 20, 30)
    axes.text(20, 25, "on a band", va="center")
    figure.legend(["in a panel"], loc="center")
    assert overprinted(figure) == [
        "on a curve", "beyond the edge", "on a band", "one and other", "legend"
    ]  # fmt: skip
