"""Losses by budget in a report: sentences, tables and pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fire_lm.reporting import charts, figure
from fire_lm.reporting.budgets import Budgets, by_budget, drifts, head, tokens_in_words
from fire_lm.reporting.differences import Sample, Tested
from fire_lm.reporting.length_sweep import loss_styles
from fire_lm.reporting.losses import Scored
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import Series, spread_of
from fire_lm.reporting.verdicts import tested_table
from fire_lm.results.folder import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sections(results: Results) -> list[Section]:
    """Return a section for each text on which a series of arms has losses at several budgets."""
    made = []
    for scored, budgets in by_budget(results).items():
        pictures = losses(scored, budgets), drift(scored, budgets)
        parts: list[Table | Picture] = [*drift_tables(budgets), *pictures]
        made.append(Section(f"Losses by budget: {scored}", described(budgets), parts))
    return made


def described(budgets: Budgets) -> list[str]:
    """Describe what a budget and a drift are."""
    words = "A budget is the number of tokens seen in training: steps x batch x length."
    if not budgets.ended:
        words += (
            " Some of these models are checkpoints from the middle of runs, whose learning rate "
            "was still high: runs that end at each budget tell more."
        )
    drift = "The drift is the loss at a multiple of the training length minus that at that length."
    return [" ".join(filter(None, (words, budgets.omission, drift)))]


def drift_tables(budgets: Budgets) -> list[Table]:
    """Tabulate drift by budget, and the same minus KERPLE's, for each multiple."""
    tables, scale = [], budgets.scale
    heads = [head(budgets, tokens) for tokens in budgets.tokens]
    for multiple in budgets.multiples:
        found = drifts(budgets, multiple)
        columns = [*found.drift.values(), found.growth]
        caption = f"{scale.unit[0].upper()}{scale.unit[1:]} at x{multiple:g} above the loss at the "
        caption += "training length"
        names = list(budgets.series)
        tables.append(tested_table(caption, [*heads, "last minus first"], columns, names, scale))
        over = list(found.over_kerple.values())
        if any(over):
            names = [name for name in names if any(name in column for column in over)]
            caption = f"The same minus KERPLE's, at x{multiple:g}"
            tables.append(tested_table(caption, heads, over, names, scale))
    return tables


def losses(scored: Scored, budgets: Budgets) -> Picture:
    """Draw loss against length, with a panel for each series and a line for each budget."""
    names = {tokens: f"{tokens_in_words(tokens)} tokens" for tokens in budgets.tokens}
    shades = charts.shades(len(names))
    styles: dict[str, figure.Style] = {
        name: {"color": colour, "marker": "o"}
        for name, colour in zip(names.values(), shades, strict=True)
    }
    values = [loss.mean for point in budgets.points for loss in point.points.values()]
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
            [dataclasses.replace(point, name=names[point.tokens]) for point in points],
            axis,
            trained=[point.train_length for point in points],
        )
        for name, points in budgets.series.items()
    ]
    last = {name: points[-1].points for name, points in budgets.series.items()}
    ends = ", ".join(f"{name} {means[max(means)].mean:.3f}" for name, means in last.items())
    return figure.picture(
        f"budgets {scored}",
        f"Loss against length on {scored}, by the number of tokens seen in training; bars: "
        f"{spread_of(budgets.points)}.",
        f"Panels of loss ({budgets.scale.unit}) against length, one for each encoding, with a line "
        f"for each budget. At the longest length and the largest budget: {ends}.",
        panels,
        styles,
    )


def drift(scored: Scored, budgets: Budgets) -> Picture:
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
        of_row = [_series(budgets, tested) for tested in columns]
        points = [point for series in of_row for one in series for point in one.points.values()]
        ends = [p.mean + sign * np.nan_to_num(p.error) for p in points for sign in (-1, 1)]
        limits = 1.15 * min(*ends, -0.1), 1.15 * max(*ends, 0.1)  # so that columns can be compared
        axis = figure.Axis("training tokens per parameter", label, limits=limits, adjust=adjust)
        titles = (f"x{multiple:g} the training length" for multiple in found)
        panels += [figure.Panel(*both, axis) for both in zip(titles, of_row, strict=True)]
    longest = budgets.multiples[-1]
    told = "; ".join(
        f"{one.name} " + ", ".join(f"{point.mean:+.3f}" for point in one.points.values())
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
        loss_styles(budgets.results, budgets.points),
        columns=len(found),
    )


def _series(budgets: Budgets, tested: Mapping[int, Tested]) -> list[Series]:
    """Return differences by tokens per parameter, with half their intervals as errors."""
    series = []
    for name, points in budgets.series.items():
        means = {
            point.per_parameter: Sample({name: one.value}, error=one.half_width)
            for point in points
            if name in tested[point.tokens]
            for one, _ in [tested[point.tokens][name]]
        }
        if means:
            series.append(Series(name, means, points[0].arm))
    return series


def budget_axis(axes: Axes, budgets: Budgets) -> None:
    """Set a logarithmic axis of tokens per parameter, with a tick at each budget."""
    ratios = {tokens: budgets.at(tokens)[0].per_parameter for tokens in budgets.tokens}
    axes.set_xscale("log")
    axes.set_xticks(list(ratios.values()), [f"{ratio:.3g}" for ratio in ratios.values()])
    axes.set_xticks([], minor=True)
