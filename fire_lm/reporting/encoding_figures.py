"""Pictures of what encodings learned: scalars over training, biases, the scores of a head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture
from fire_lm.reporting.result_files import AttentionScore, BiasValue, LearnedNumber
from fire_lm.reporting.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4  # of small panels
# The paper's range of the learned L, of models trained at this length (section B.1).
_PAPER_L, _PAPER_TRAIN_LENGTH = (1200.0, 1600.0), 2048


def learned(results: Results) -> list[Picture]:
    """c and L of each layer over training, and gamma where there is one: an arm a picture."""
    found = []
    for arm, runs in results.arms().items():
        of_run: dict[str, list[LearnedNumber]] = {}
        for number in results.learned:
            if number.run == runs[0].run:
                of_run.setdefault(number.name, []).append(number)
        if of_run:
            found.append(_learned(arm, runs[0].seed, runs[0].train_length, of_run))
    return found


def _learned(
    arm: str, seed: int, train_length: int, names: dict[str, list[LearnedNumber]]
) -> Picture:
    layers = sorted({number.layer for numbers in names.values() for number in numbers})
    colours = dict(zip(layers, charts.shades(len(layers)), strict=True))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, (name, numbers) in zip(panels, sorted(names.items()), strict=True):
            for layer in layers:
                own = sorted((n for n in numbers if n.layer == layer), key=lambda n: n.step)
                axes.plot(
                    [n.step for n in own],
                    [n.value for n in own],
                    color=colours[layer],
                    label=f"layer {layer}",
                )
            if name == "L" and train_length == _PAPER_TRAIN_LENGTH:
                axes.axhspan(*_PAPER_L, color=colours[layers[-1]], alpha=0.12)
            axes.set_title(name)
            axes.set_xlabel("step")
        charts.legend_below(figure, panels[0], columns=6)

    ends = []
    for name, numbers in sorted(names.items()):
        last = max(number.step for number in numbers)
        values = [number.value for number in numbers if number.step == last]
        ends.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    return Picture(
        name=charts.slug(f"learned {arm}"),
        caption=f"{arm}, seed {seed}, trained at {train_length} tokens: what each layer learns. At "
        f"the end {'; '.join(ends)}. The paper reports L from {_PAPER_L[0]:g} to {_PAPER_L[1]:g} "
        f"at {_PAPER_TRAIN_LENGTH}.",
        alt=f"Line charts of {', '.join(sorted(names))} of each layer of {arm} over training. "
        f"At the end: {'; '.join(ends)}.",
        image=charts.drawn(draw, 2.6 * max(2, len(names)), 3.0),
    )


def biases(results: Results) -> list[Picture]:
    """Figures 4 and 8 of the FIRE paper: an arm a picture, a block of panels a query."""
    found = []
    for arm, runs in results.arms().items():
        rows = [row for row in results.biases if row.run == runs[0].run]
        if rows:
            found.append(_biases(arm, runs[0].seed, runs[0].train_length, rows))
    return found


def _biases(arm: str, seed: int, train_length: int, rows: Sequence[BiasValue]) -> Picture:
    panels: dict[tuple[int, int], list[BiasValue]] = {}
    for row in rows:
        panels.setdefault((row.query, row.layer), []).append(row)
    queries, layers = ([*dict.fromkeys(sorted(key[i] for key in panels))] for i in (0, 1))
    heads = sorted({row.head for row in rows})
    colours = dict(zip(heads, charts.shades(len(heads)), strict=True))
    columns = min(_COLUMNS, len(layers))
    lines = math.ceil(len(layers) / columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(queries) * lines, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for (query, layer), values in panels.items():
            place = layers.index(layer)
            axes = grid[queries.index(query) * lines + place // columns][place % columns]
            axes.set_axis_on()
            _bias_panel(axes, values, query, layer, train_length, colours)
        charts.legend_below(figure, grid[0][0], columns=6)

    return Picture(
        name=charts.slug(f"biases {arm}"),
        caption=f"{arm}, seed {seed}: the learned bias of every head over the distance to the key, "
        f"for the queries at positions {' and '.join(str(query + 1) for query in queries)} "
        "(counted from 1, as the paper does).",
        alt=f"Line charts of the bias that {arm} adds to a logit over distance, one panel for each "
        f"of {len(layers)} layers and {len(queries)} queries, one line for each of {len(heads)} "
        f"heads; values from {min(r.bias for r in rows):.2f} to {max(r.bias for r in rows):.2f}.",
        image=charts.drawn(draw, 2.1 * max(2, columns), 1.9 * len(queries) * lines + 0.6),
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
    """Figure 1 of 2310.13017: scores of a head, as trained and with position interpolation."""
    found = []
    for arm, runs in results.arms().items():
        rows = [row for row in results.scores if row.run == runs[0].run]
        if len({row.variant for row in rows}) > 1:
            found.append(_scores(arm, runs[0].seed, runs[0].train_length, rows))
    return found


def _scores(arm: str, seed: int, train_length: int, rows: Sequence[AttentionScore]) -> Picture:
    first = rows[0]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        variants = list(dict.fromkeys(row.variant for row in rows))
        for variant, style in zip(variants, charts.styles(variants).values(), strict=True):
            own = [row for row in rows if row.variant == variant]
            keys = [(row.first_key + row.last_key) / 2 for row in own]
            name = f"with {variant}" if variant else "as trained"
            line = {**style, "marker": ""}
            (curve,) = axes.plot(keys, [row.score for row in own], label=name, **line)
            axes.fill_between(
                keys,
                [row.least for row in own],
                [row.largest for row in own],
                color=curve.get_color(),
                alpha=0.15,
                linewidth=0,
            )
        axes.axvline(first.query - train_length, color=charts.GREY, linestyle=":", linewidth=1)
        axes.set_xlabel(f"key position (query at {first.query})")
        axes.set_ylabel("attention score (logit)")
        charts.legend_below(figure, axes)

    return Picture(
        name=charts.slug(f"attention {arm}"),
        caption=f"{arm}, seed {seed}: scores of head {first.head} of layer {first.layer} for one "
        "query of held-out text, with and without position interpolation; mean and range of "
        f"neighbouring keys. Left of the dotted line keys are further away than {train_length}.",
        alt=f"Line chart of attention scores against key position for {arm}, query {first.query}, "
        f"layer {first.layer}, head {first.head}, as trained and with position interpolation.",
        image=charts.drawn(draw, *charts.SIZE),
    )
