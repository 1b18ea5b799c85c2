"""Pictures of losses by budget: loss against length, and drift."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fire_lm.reporting import charts, figure
from fire_lm.reporting.budgets import Budgets, Tested, drifts, tokens_in_words
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.losses import Scored
from fire_lm.reporting.page import Picture
from fire_lm.reporting.series import Mean, Series, line_name, spread_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def losses(scored: Scored, budgets: Budgets) -> Picture:
    """Draw loss against length, with a panel for each series and a line for each budget."""
    names = {tokens: f"{tokens_in_words(tokens)} tokens" for tokens in budgets.tokens}
    shades = charts.shades(len(names))
    styles: dict[str, figure.Style] = {
        name: {"color": colour, "marker": "o"}
        for name, colour in zip(names.values(), shades, strict=True)
    }
    values = [mean.value for point in budgets.points for mean in point.line.points.values()]
    margin = 0.05 * (max(values) - min(values))
    axis = figure.Axis(
        "sequence length (tokens)",
        f"loss ({budgets.scale.unit})",
        lengths=True,
        limits=(min(values) - margin, max(values) + margin),  # so that panels can be compared
    )
    panels = [
        figure.Panel(
            name,
            [dataclasses.replace(point.line, name=names[point.tokens]) for point in points],
            axis,
            trained=[point.line.train_length for point in points],
        )
        for name, points in budgets.series.items()
    ]
    last = {name: points[-1].line.points for name, points in budgets.series.items()}
    ends = ", ".join(f"{name} {means[max(means)].value:.3f}" for name, means in last.items())
    return figure.picture(
        f"budgets {scored}",
        f"Loss against length on {scored}, by the number of tokens seen in training; bars: "
        f"{spread_of(point.line for point in budgets.points)}.",
        f"Panels of loss ({budgets.scale.unit}) against length, one for each encoding, with a line "
        f"for each budget. At the longest length and the largest budget: {ends}.",
        panels,
        styles,
    )


def drift(scored: Scored, budgets: Budgets, styles: Mapping[str, figure.Style]) -> Picture:
    """Draw drift against tokens per parameter, and the same minus KERPLE's where there is one."""
    found = {multiple: drifts(budgets, multiple) for multiple in budgets.multiples}
    unit = budgets.scale.unit
    rows = {f"drift ({unit})": [one.drift for one in found.values()]}
    if any(any(one.over_kerple.values()) for one in found.values()):
        rows["minus KERPLE's drift"] = [one.over_kerple for one in found.values()]

    def adjust(axes: Axes) -> None:
        axes.axhline(0, color=charts.GREY, linewidth=1)
        budget_axis(axes, budgets)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.yaxis.set_major_formatter("{x:g}")

    panels = []
    for label, columns in rows.items():
        ends = [
            one.value + sign * (one.half_width if one.tested else 0.0)
            for tested in columns
            for of_budget in tested.values()
            for one, _ in of_budget.values()
            for sign in (-1, 1)
        ]
        limits = 1.15 * min(*ends, -0.1), 1.15 * max(*ends, 0.1)  # so that columns can be compared
        axis = figure.Axis("training tokens per parameter", label, limits=limits, adjust=adjust)
        for multiple, tested in zip(found, columns, strict=True):
            title = f"x{multiple:g} the training length"
            panels.append(figure.Panel(title, _series(budgets, tested), axis))
    of_lines = {
        name: styles.get(line_name(points[0].line.arm, points[0].line.variant), {})
        for name, points in budgets.series.items()
    }
    longest = budgets.multiples[-1]
    told = "; ".join(
        f"{one.name} " + ", ".join(f"{point.value:+.3f}" for point in one.points.values())
        for one in _series(budgets, found[longest].drift)
        if len(one.points) == len(budgets.series[one.name])
    )
    below = "; below, the same minus KERPLE's" * (len(rows) > 1)
    return figure.picture(
        f"drift {scored}",
        "Drift, the loss at a multiple of the training length minus that at the training length, "
        f"against training tokens per parameter, on {scored}{below}; bars: 95 % intervals, none "
        "for a single run.",
        f"Panels of drift ({unit}) against training tokens per parameter, one for each multiple of "
        f"the training length. At x{longest:g}, by budget: {told}.",
        panels,
        of_lines,
        columns=len(found),
    )


def _series(budgets: Budgets, tested: Mapping[int, Tested]) -> list[Series]:
    """Return differences by tokens per parameter, with half their intervals as errors."""
    series = []
    for name, points in budgets.series.items():
        means = {
            point.per_parameter: Mean(Sample({name: one.value}), one.half_width)
            for point in points
            if name in tested[point.tokens]
            for one, _ in [tested[point.tokens][name]]
        }
        if means:
            series.append(Series(name, means, points[0].line.arm))
    return series


def budget_axis(axes: Axes, budgets: Budgets) -> None:
    """Set a logarithmic axis of tokens per parameter, with a tick at each budget."""
    ratios = {tokens: budgets.at(tokens)[0].per_parameter for tokens in budgets.tokens}
    axes.set_xscale("log")
    axes.set_xticks(list(ratios.values()), [f"{ratio:.3g}" for ratio in ratios.values()])
    axes.set_xticks([], minor=True)
