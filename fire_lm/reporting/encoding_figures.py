"""Pictures of learned encodings: scalars during training, biases, and attention scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from fire_lm.reporting import charts, figure
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.page import Picture
from fire_lm.reporting.probes import MOST_DRAWN
from fire_lm.reporting.series import Mean, Series, grouped
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.tables import AttentionScore, BiasValue, LearnedNumber

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Row = TypeVar("_Row", LearnedNumber, BiasValue, AttentionScore)
_COLUMNS = 4  # the number of small panels side by side


def limit(results: Results, *kinds: Sequence[Picture]) -> list[str]:
    """Return a sentence on the limit of pictures in a list, or [] if no kind has reached it."""
    reached = any(len(pictures) == MOST_DRAWN for pictures in kinds)
    if not reached or len(results.arms()) == MOST_DRAWN:
        return []
    return [
        f"Each kind of picture is drawn for at most {MOST_DRAWN} kinds of run, the first in the "
        "table above that have one; for another run, use `fire-lm report RUN`."
    ]


def learned(results: Results) -> list[Picture]:
    """Draw the learned scalars of each layer, such as c, L and gamma, by step.

    There is one picture for each of the first `MOST_DRAWN` arms with learned scalars.
    """
    first = islice(_first_of_arms(results, results.learned), MOST_DRAWN)
    return [_learned(run, numbers) for run, numbers in first]


def _first_of_arms(results: Results, rows: Sequence[_Row]) -> Iterator[tuple[RunFacts, list[_Row]]]:
    """Yield, for each arm, the run with the lowest seed among those with rows, and its rows."""
    for runs in results.arms().values():
        for run in runs:
            if own := [row for row in rows if row.run == run.run]:
                yield run, own
                break


def _learned(run: RunFacts, numbers: Sequence[LearnedNumber]) -> Picture:
    layers = sorted({number.layer for number in numbers})
    shades = charts.shades(len(layers))
    styles: dict[str, figure.Style] = {
        f"layer {layer}": {"color": colour} for layer, colour in zip(layers, shades, strict=True)
    }
    panels, told = [], []
    for name, of_name in sorted(grouped(numbers, lambda number: number.name).items()):
        of_layers = grouped(sorted(of_name, key=lambda n: (n.layer, n.step)), lambda n: n.layer)
        series = [
            Series(f"layer {layer}", {n.step: Mean(Sample({"": n.value})) for n in own}, run.arm)
            for layer, own in of_layers.items()
        ]
        panels.append(figure.Panel(name, series, figure.Axis("step", ""), errors=""))
        last = max(number.step for number in of_name)
        values = [number.value for number in of_name if number.step == last]
        told.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    step = max(number.step for number in numbers)
    return figure.picture(
        f"learned {run.arm}",
        f"{run.arm}, seed {run.seed}, trained at {run.train_length} tokens: the learned scalars of "
        f"each layer. At step {step:,}: {'; '.join(told)}.",
        f"Line charts of {', '.join(panel.title for panel in panels)} in each layer of {run.arm} "
        f"during training. At step {step:,}: {'; '.join(told)}.",
        panels,
        styles,
    )


def biases(results: Results) -> list[Picture]:
    """Draw learned biases against distance, as in Figures 4 and 8 of the FIRE paper.

    There is one picture for each of the first `MOST_DRAWN` arms with biases, with a block of panels
    for each query.
    """
    first = islice(_first_of_arms(results, results.biases), MOST_DRAWN)
    return [_biases(run, rows) for run, rows in first]


def _biases(run: RunFacts, rows: Sequence[BiasValue]) -> Picture:
    panels: dict[tuple[int, int], list[BiasValue]] = {}
    for row in rows:
        panels.setdefault((row.query, row.layer), []).append(row)
    queries, layers = ([*dict.fromkeys(sorted(key[i] for key in panels))] for i in (0, 1))
    heads = sorted({row.head for row in rows})
    colours = dict(zip(heads, charts.shades(len(heads)), strict=True))
    columns = min(_COLUMNS, len(layers))
    lines = math.ceil(len(layers) / columns)
    low, high = min(row.bias for row in rows), max(row.bias for row in rows)
    beyond = any(query > run.train_length for query in queries)
    dotted = f"; dotted: the training length, {run.train_length}" * beyond

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(queries) * lines, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for (query, layer), values in panels.items():
            place = layers.index(layer)
            axes = grid[queries.index(query) * lines + place // columns][place % columns]
            axes.set_axis_on()
            _bias_panel(axes, values, query, layer, run.train_length, colours)
        for axes in grid[:, 0]:
            axes.set_ylabel("bias", fontsize=8)
        for axes in grid[lines - 1 :: lines].flat:  # the last row of each block
            axes.set_xlabel("distance to the key", fontsize=8)
        charts.legend_below(figure, [grid[0][0]])

    return Picture(
        name=charts.slug(f"biases {run.arm}"),
        caption=f"{run.arm}, seed {run.seed}: the learned bias of every head against the distance "
        f"to the key, for queries at positions {' and '.join(str(q + 1) for q in queries)} "
        f"(counted from 1, as in the paper){dotted}. Each panel has its own scale; all values "
        f"lie between {low:.2f} and {high:.2f}.",
        alt=f"Line charts of the bias that {run.arm} adds to a logit against distance, with panels "
        f"by layer ({len(layers)}) and query ({len(queries)}), and a line for each head "
        f"({len(heads)}); values from {low:.2f} to {high:.2f}.",
        image=charts.drawn(draw, 2.1 * max(2, columns) + 0.3, 1.9 * len(queries) * lines + 0.9),
        panels=columns,
    )


def _bias_panel(
    axes: Axes,
    values: Sequence[BiasValue],
    query: int,
    layer: int,
    train_length: int,
    colours: dict[int, str],
) -> None:
    for head, colour in colours.items():
        own = sorted((v for v in values if v.head == head), key=lambda v: -v.key)
        distances = [query - v.key for v in own]
        axes.plot(
            distances, [v.bias for v in own], color=colour, label=f"head {head}", linewidth=1.2
        )
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    ticks = [0, *(8**k for k in range(9) if 8**k < query / 2), query]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.tick_params(labelsize=7)
    if train_length < query:
        axes.axvline(train_length, color=charts.GREY, linestyle=":", linewidth=1)
    axes.set_title(f"query {query + 1}, layer {layer}", fontsize=8)


def scores(results: Results) -> list[Picture]:
    """Draw a head's scores with and without interpolation, as in Figure 1 of arXiv:2310.13017."""
    first = [
        (run, rows)
        for run, rows in _first_of_arms(results, results.scores)
        if len({row.variant for row in rows}) > 1
    ]
    return [_scores(run, rows) for run, rows in first[:MOST_DRAWN]]


def _scores(run: RunFacts, rows: Sequence[AttentionScore]) -> Picture:
    first = rows[0]
    colours = {"": charts.GREY, _variant(rows): charts.FIRST}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for variant, colour in colours.items():
            own = [row for row in rows if row.variant == variant]
            keys = [(row.first_key + row.last_key) / 2 + 1 for row in own]
            name = f"with {variant}" if variant else "as trained"
            axes.plot(keys, [row.score for row in own], label=name, color=colour)
            axes.fill_between(
                keys,
                [row.least for row in own],
                [row.largest for row in own],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        furthest = first.query + 1 - run.train_length
        axes.axvline(furthest, color=charts.GREY, linestyle=":", linewidth=1)
        axes.set_xlabel(f"key position (query position: {first.query + 1})")
        axes.set_ylabel("attention score (logit)")
        charts.legend_below(figure, [axes])

    return Picture(
        name=charts.slug(f"attention {run.arm}"),
        caption=f"{run.arm}, seed {run.seed}: scores of head {first.head} of layer {first.layer} "
        f"for the query at position {first.query + 1} of held-out text, as trained and with "
        "position interpolation. Lines: means over neighbouring keys; bands: from their minimum to "
        "their maximum. To the left of the dotted line, keys are further away than the training "
        f"length, {run.train_length}.",
        alt=f"Line chart of attention scores against key position for {run.arm}, layer "
        f"{first.layer}, head {first.head}, as trained and with position interpolation.",
        image=charts.drawn(draw, *charts.size(["as trained", "with it"])),
    )


def _variant(rows: Sequence[AttentionScore]) -> str:
    return next(row.variant for row in rows if row.variant)
