"""Pictures of losses by budget: loss against length, and drift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fire_lm.reporting import charts
from fire_lm.reporting.budgets import Budgets, Tested, drifts, tokens_in_words
from fire_lm.reporting.figures import line_styles, spread_of
from fire_lm.reporting.page import Picture
from fire_lm.reporting.seeds import Scored, line_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3


def losses(scored: Scored, budgets: Budgets) -> Picture:
    """Draw loss against length, with a panel for each series and a line for each budget."""
    series, tokens = budgets.series, budgets.tokens
    columns = min(_COLUMNS, len(series))
    height = -(-len(series) // columns)
    colours = dict(zip(tokens, charts.shades(len(tokens)), strict=True))
    unit = "nats per token" if budgets.nats else "bits per byte"
    lines = [point.line for point in budgets.points]

    def draw(figure: Figure) -> None:
        panels = list(figure.subplots(height, columns, squeeze=False, sharey=True).flat)
        for number, (axes, name) in enumerate(zip(panels, series, strict=False)):
            points = series[name]
            for point in points:
                values = point.line.losses(budgets.nats)
                axes.errorbar(
                    list(values),
                    [mean.value for mean in values.values()],
                    yerr=[mean.spread or 0.0 for mean in values.values()],
                    label=f"{tokens_in_words(point.tokens)} tokens",
                    color=colours[point.tokens],
                    **{"marker": "o", "markersize": 3, "capsize": 2},
                )
            charts.length_axis(axes, sorted({n for line in lines for n in line.losses(True)}))
            if number + columns < len(series):
                axes.set_xlabel("")
            axes.tick_params(axis="x", labelsize=8)
            charts.training_length(axes, [point.line.train_length for point in points])
            axes.set_title(name, loc="left")
        for axes in panels[len(series) :]:
            axes.set_axis_off()
        figure.supylabel(f"loss ({unit})", fontsize=10)
        charts.legend_below(figure, figure.axes)

    last = {name: points[-1].line.losses(budgets.nats) for name, points in series.items()}
    ends = ", ".join(f"{name} {values[max(values)].value:.3f}" for name, values in last.items())
    return Picture(
        name=charts.slug(f"budgets {scored}"),
        caption=f"Loss against length on {scored}, by the number of tokens seen in training; bars: "
        f"{spread_of(lines)}.",
        alt=f"Panels of loss ({unit}) against length, one for each encoding, with a line for each "
        f"budget. At the longest length and the largest budget: {ends}.",
        image=charts.drawn(draw, 3.1 * columns, 0.6 + 2.6 * height),
        panels=columns,
    )


def drift(scored: Scored, budgets: Budgets) -> Picture:
    """Draw drift against tokens per parameter, and the same minus KERPLE's where there is one."""
    found = {multiple: drifts(budgets, multiple) for multiple in budgets.multiples}
    kerple = any(any(one.over_kerple.values()) for one in found.values())
    styles = line_styles(budgets.results)
    unit = "nats per token" if budgets.nats else "bits per byte"

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1 + kerple, len(found), squeeze=False, sharex=True, sharey="row")
        for column, (multiple, tested) in enumerate(found.items()):
            _draw(panels[0][column], budgets, tested.drift, styles)
            panels[0][column].set_title(f"x{multiple:g} the training length", loc="left")
            if kerple:
                _draw(panels[1][column], budgets, tested.over_kerple, styles)
            panels[-1][column].set_xlabel("training tokens per parameter")
        panels[0][0].set_ylabel(f"drift ({unit})")
        if kerple:
            panels[1][0].set_ylabel("minus KERPLE's drift")
        charts.legend_below(figure, list(panels.flat))

    longest = budgets.multiples[-1]
    told = "; ".join(
        f"{name} " + ", ".join(f"{tested.drift[p.tokens][name][0].value:+.3f}" for p in points)
        for tested in [found[longest]]
        for name, points in budgets.series.items()
        if all(name in tested.drift[p.tokens] for p in points)
    )
    below = "; below, the same minus KERPLE's" * kerple
    return Picture(
        name=charts.slug(f"drift {scored}"),
        caption="Drift, the loss at a multiple of the training length minus that at the training "
        f"length, against training tokens per parameter, on {scored}{below}; bars: 95 % "
        "intervals, none for a single run.",
        alt=f"Panels of drift ({unit}) against training tokens per parameter, one for each "
        f"multiple of the training length. At x{longest:g}, by budget: {told}.",
        image=charts.drawn(draw, 3.3 * len(found), 1.2 + 2.8 * (1 + kerple)),
        panels=len(found),
    )


def _draw(
    axes: Axes,
    budgets: Budgets,
    tested: Mapping[int, Tested],
    styles: Mapping[str, dict[str, Any]],
) -> None:
    for name, points in budgets.series.items():
        known = [point for point in points if name in tested[point.tokens]]
        differences = [tested[point.tokens][name][0] for point in known]
        errors = [one.half_width if one.tested else 0.0 for one in differences]
        values = [one.value for one in differences]
        ratios = [point.per_parameter for point in known]
        style = styles.get(line_name(points[0].line.arm, points[0].line.variant), {})
        if known:
            axes.errorbar(ratios, values, errors, label=name, markersize=4, capsize=2, **style)
    axes.axhline(0, color=charts.GREY, linewidth=1)
    budget_axis(axes, budgets)
    axes.set_yscale("symlog", linthresh=0.1)
    axes.yaxis.set_major_formatter("{x:g}")


def budget_axis(axes: Axes, budgets: Budgets) -> None:
    """Set a logarithmic axis of tokens per parameter, with a tick at each budget."""
    ratios = {tokens: budgets.at(tokens)[0].per_parameter for tokens in budgets.tokens}
    axes.set_xscale("log")
    axes.set_xticks(list(ratios.values()), [f"{ratio:.3g}" for ratio in ratios.values()])
    axes.set_xticks([], minor=True)
