"""Pictures of learned encodings: scalars during training, biases, and attention scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fire_lm.reporting import charts, figure
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.page import Picture
from fire_lm.reporting.probes import MOST_DRAWN
from fire_lm.reporting.series import Series, grouped
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.tables import AttentionScore, BiasValue, LearnedNumber

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Row = TypeVar("_Row", LearnedNumber, BiasValue, AttentionScore)


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
    return [_learned(*first) for first in _first_of_arms(results, results.learned)[:MOST_DRAWN]]


def biases(results: Results) -> list[Picture]:
    """Draw learned biases against distance, as in Figures 4 and 8 of the FIRE paper.

    There is one picture for each of the first `MOST_DRAWN` arms with biases.
    """
    return [_biases(*first) for first in _first_of_arms(results, results.biases)[:MOST_DRAWN]]


def _first_of_arms(results: Results, rows: Sequence[_Row]) -> list[tuple[RunFacts, list[_Row]]]:
    """Return, for each arm with rows, the run with the lowest seed that has some, and its rows."""
    of_runs = grouped(rows, lambda row: row.run)
    known = ([run for run in runs if run.run in of_runs] for runs in results.arms().values())
    return [(runs[0], of_runs[runs[0].run]) for runs in known if runs]


def _shaded(
    rows: Sequence[_Row], what: Callable[[_Row], str], point: Callable[[_Row], tuple[int, float]]
) -> list[Series]:
    """Return a series for each layer or head, which `what` names, with the points of its rows."""
    return [
        Series(name, {x: Sample({"": y}) for x, y in map(point, own)}, name)
        for name, own in grouped(rows, what).items()
    ]


def _shades(names: Sequence[str]) -> dict[str, figure.Style]:
    shades = charts.shades(len(names))
    return {name: {"color": colour} for name, colour in zip(names, shades, strict=True)}


def _learned(run: RunFacts, numbers: Sequence[LearnedNumber]) -> Picture:
    numbers = sorted(numbers, key=lambda number: (number.name, number.layer, number.step))
    panels, ranges = [], []
    for name, of_name in grouped(numbers, lambda number: number.name).items():
        series = _shaded(of_name, lambda n: f"layer {n.layer}", lambda n: (n.step, n.value))
        panels.append(figure.Panel(name, series, figure.Axis("step", ""), errors=""))
        last = max(number.step for number in of_name)
        values = [number.value for number in of_name if number.step == last]
        ranges.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    step = max(number.step for number in numbers)
    return figure.picture(
        f"learned {run.arm}",
        f"{run.arm}, seed {run.seed}, trained at {run.train_length} tokens: the learned scalars of "
        f"each layer. At step {step:,}: {'; '.join(ranges)}.",
        f"Line charts of {', '.join(panel.title for panel in panels)} in each layer of {run.arm} "
        f"during training. At step {step:,}: {'; '.join(ranges)}.",
        panels,
        _shades([f"layer {layer}" for layer in sorted({number.layer for number in numbers})]),
    )


def _biases(run: RunFacts, rows: Sequence[BiasValue]) -> Picture:
    rows = sorted(rows, key=lambda row: (row.query, row.layer, row.head, -row.key))
    queries, layers, heads = (
        sorted({getattr(row, name) for row in rows}) for name in ("query", "layer", "head")
    )
    panels = []
    for (query, layer), own in grouped(rows, lambda row: (row.query, row.layer)).items():
        series = _shaded(own, lambda r: f"head {r.head}", lambda r: (r.query - r.key, r.bias))
        axis = figure.Axis("distance to the key", "bias", adjust=partial(_distances, query=query))
        trained = [run.train_length] * (run.train_length < query)
        title = f"query {query + 1}, layer {layer}"
        panels.append(figure.Panel(title, series, axis, errors="", trained=trained))
    low, high = min(row.bias for row in rows), max(row.bias for row in rows)
    dotted = f"; dotted: the training length, {run.train_length}" * any(p.trained for p in panels)
    return figure.picture(
        f"biases {run.arm}",
        f"{run.arm}, seed {run.seed}: the learned bias of every head against the distance "
        f"to the key, for queries at positions {' and '.join(str(q + 1) for q in queries)} "
        f"(counted from 1, as in the paper){dotted}. Each panel has its own scale; all values "
        f"lie between {low:.2f} and {high:.2f}.",
        f"Line charts of the bias that {run.arm} adds to a logit against distance, with panels "
        f"by layer ({len(layers)}) and query ({len(queries)}), and a line for each head "
        f"({len(heads)}); values from {low:.2f} to {high:.2f}.",
        panels,
        _shades([f"head {head}" for head in heads]),
        columns=min(4, len(layers)),
    )


def _distances(axes: Axes, query: int) -> None:
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    ticks = [0, *(8**k for k in range(9) if 8**k < query / 2), query]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)


def scores(results: Results) -> list[Picture]:
    """Draw a head's scores with and without interpolation, as in Figure 1 of arXiv:2310.13017."""
    first = _first_of_arms(results, results.scores)
    compared = [one for one in first if len({row.variant for row in one[1]}) > 1]
    return [_scores(*one) for one in compared[:MOST_DRAWN]]


def _scores(run: RunFacts, rows: Sequence[AttentionScore]) -> Picture:
    first = rows[0]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for variant, own in sorted(grouped(rows, lambda row: row.variant).items())[:2]:
            keys = [(row.first_key + row.last_key) / 2 + 1 for row in own]
            name, colour = "as trained", charts.GREY
            if variant:
                name, colour = f"with {variant}", charts.FIRST
            axes.plot(keys, [row.score for row in own], label=name, color=colour)
            low, high = [row.least for row in own], [row.largest for row in own]
            axes.fill_between(keys, low, high, color=colour, alpha=0.15, linewidth=0)
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
