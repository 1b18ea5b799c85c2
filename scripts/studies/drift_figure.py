"""The figure and the tables of why FIRE drifts, from the tables that `drift_probes.py` writes.

usage: .venv/bin/python scripts/studies/drift_figure.py

The part of docs/frozen_normaliser.md between the two comments of this script is written again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import page_parts
from etils import epath
from probe_rows import CURVES, FOLDER, HEADS, PARTS, CurveRow, HeadRow, PartRow

from fire_lm.reporting import charts
from fire_lm.reporting.budgets import tokens_in_words
from fire_lm.reporting.page import Table
from fire_lm.results.tables import read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINED = 64
# The keys that have FIRE's bias, not the frozen normaliser's: what near and far keys have.
PARTS_OF_COST = {
    "near keys": ("fire", "frozen"),
    "far keys": ("frozen", "fire"),
    "both": ("fire", "fire"),
}
PAGE = "frozen_normaliser.md"
FIGURE = "evidence/drift_probes/why_fire_drifts.svg"
_NAMES = {("fire", ""): "FIRE", ("fire", "frozen"): "FIRE, frozen", ("kerple_log", ""): "KERPLE"}
_DASHES = {"FIRE": "-", "FIRE, frozen": "--", "KERPLE": ":"}


def name_of(row: HeadRow) -> str:
    return _NAMES[row.encoding, row.variant]


def over_seeds(
    rows: Iterable[HeadRow], value: Callable[[HeadRow], float]
) -> dict[tuple[str, int, int], list[float]]:
    """Return, by model, budget and length, the mean over heads of a value for each run."""
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for row in rows:
        key = (name_of(row), row.tokens, row.length)
        found.setdefault(key, {}).setdefault(row.run, []).append(value(row))
    return {key: [statistics.fmean(v) for v in runs.values()] for key, runs in found.items()}


def local_heads(rows: Sequence[HeadRow]) -> list[HeadRow]:
    """Return the rows of the heads of FIRE whose bias is largest before the query itself."""
    local = {
        (row.run, row.layer, row.head)
        for row in rows
        if row.encoding == "fire" and row.length == TRAINED and row.peak > 0.5
    }
    return [row for row in rows if (row.run, row.layer, row.head) in local]


def share_of_local_heads(rows: Sequence[HeadRow]) -> dict[tuple[str, int], list[float]]:
    """Return, by model and budget, the share of `local_heads` among the heads of each run."""
    local = {(row.run, row.layer, row.head) for row in local_heads(rows)}
    trained = [row for row in rows if row.length == TRAINED and row.encoding == "fire"]
    means = over_seeds(trained, lambda row: (row.run, row.layer, row.head) in local)
    return {(name, tokens): values for (name, tokens, _), values in means.items()}


def draw(
    heads: Sequence[HeadRow], parts: Sequence[PartRow], curves: Sequence[CurveRow]
) -> charts.Image:
    """Draw the six panels."""
    budgets = sorted({row.tokens for row in heads})
    colours = dict(zip(budgets, charts.shades(len(budgets)), strict=True))
    local = local_heads(heads)

    def panels(figure: Figure) -> None:
        (curve, moved, lead), (at_peak, beyond, cost) = figure.subplots(2, 3)
        _curves(curve, curves)
        _moved(moved, local, colours)
        _lines(lead, over_seeds(local, lambda row: row.lead), colours)
        lead.axhline(0, color=charts.GREY, linewidth=1)
        lead.set_ylabel("nats")
        lead.set_title("lead of the learned distance\nin bias over all others", loc="left")
        _lines(at_peak, over_seeds(local, lambda row: row.at_peak), colours)
        at_peak.set_title("attention to the learned\ndistance", loc="left")
        _lines(beyond, over_seeds(heads, lambda row: row.beyond), colours)
        beyond.set_title("attention beyond the training\nlength, all heads", loc="left")
        _costs(cost, parts, colours)
        charts.legend_below(figure, [lead, beyond])

    return charts.drawn(panels, 10.5, 7.4)


def _curves(axes: Axes, curves: Sequence[CurveRow]) -> None:
    lengths = sorted({row.length for row in curves})
    for length, colour in zip(lengths, charts.shades(len(lengths)), strict=True):
        points = [(row.distance, row.bias) for row in curves if row.length == length]
        axes.plot(*zip(*points, strict=True), color=colour, label=f"query {length - 1}")
        whole = [(d, bias) for d, bias in points if d == int(d)]
        axes.plot(*zip(*whole, strict=True), "o", color=colour, markersize=4)
    axes.set_xlabel("distance (tokens)")
    axes.set_ylabel("bias (nats)")
    axes.legend()
    one = curves[0]
    axes.set_title(
        f"a head of FIRE, {tokens_in_words(one.tokens)} tokens\n(layer {one.layer}, head "
        f"{one.head} of {one.run.rpartition('/')[2]})",
        loc="left",
    )


def _moved(axes: Axes, local: Sequence[HeadRow], colours: Mapping[int, str]) -> None:
    trained = {
        (r.run, r.layer, r.head): r.peak for r in local if r.length == TRAINED and not r.variant
    }
    for tokens, colour in colours.items():
        some = [r for r in local if r.tokens == tokens and not r.variant and r.length > TRAINED]
        axes.plot(
            [row.stretch for row in some],
            [row.peak / trained[row.run, row.layer, row.head] for row in some],
            *("o",),
            color=colour,
            markersize=4,
            alpha=0.7,
        )
    ends = [1.0, max((row.stretch for row in local), default=2.0)]
    axes.plot(ends, ends, color=charts.GREY, linewidth=1)
    axes.set_xlabel("ψ(n - 1) / ψ(T - 1)")
    axes.set_title("distance of the largest bias,\nover that at T", loc="left")


def _lines(
    axes: Axes, means: Mapping[tuple[str, int, int], Sequence[float]], colours: Mapping[int, str]
) -> None:
    """Draw a line for each model and budget, and bars of the standard deviation over seeds."""
    lengths = sorted({length for _, _, length in means})
    for name, tokens in sorted({key[:2] for key in means}):
        values = [means[name, tokens, length] for length in lengths]
        axes.errorbar(
            lengths,
            [statistics.fmean(some) for some in values],
            [statistics.stdev(some) if len(some) > 1 else 0.0 for some in values],
            label=f"{name}, {tokens_in_words(tokens)} tokens",
            color=colours[tokens],
            linestyle=_DASHES[name],
            marker="o",
            markersize=3,
            capsize=2,
        )
    charts.length_axis(axes, lengths)
    axes.set_xlabel("position (tokens)")


def costs(parts: Sequence[PartRow]) -> dict[tuple[int, int], dict[str, list[float]]]:
    """Return, by budget and length, what each part costs in each run, in nats per token.

    The cost of near keys is that of their stretched bias if far keys have the frozen normaliser,
    and likewise for far keys. That of both is the drift that freezing removes.
    """
    losses = {(r.run, r.tokens, r.length, r.near, r.far): r.loss for r in parts}
    found: dict[tuple[int, int], dict[str, list[float]]] = {}
    for run, tokens, length in dict.fromkeys(key[:3] for key in losses):
        least = losses[run, tokens, length, "frozen", "frozen"]
        for name, part in PARTS_OF_COST.items():
            own = found.setdefault((tokens, length), {}).setdefault(name, [])
            own.append(losses[run, tokens, length, *part] - least)
    return found


def _costs(axes: Axes, parts: Sequence[PartRow], colours: Mapping[int, str]) -> None:
    found = costs(parts)
    lengths = sorted({length for _, length in found if length > TRAINED})
    width = 0.8 / len(colours)
    for number, (tokens, colour) in enumerate(colours.items()):
        groups = [(length, name) for length in lengths for name in PARTS_OF_COST]
        values = [found[tokens, length][name] for length, name in groups]
        axes.bar(
            np.arange(len(groups)) + width * (number - (len(colours) - 1) / 2),
            [statistics.fmean(some) for some in values],
            width,
            yerr=[statistics.stdev(some) if len(some) > 1 else 0.0 for some in values],
            color=colour,
            ecolor=charts.GREY,
            capsize=2,
        )
    labels = [f"{name.removesuffix(' keys')}\n{length}" for length, name in groups]
    axes.set_xticks(range(len(groups)), labels, fontsize=8)
    axes.set_ylabel("nats per token")
    axes.set_title("loss above the frozen FIRE if these\nkeys alone have FIRE's bias", loc="left")


def tables(heads: Sequence[HeadRow], parts: Sequence[PartRow]) -> list[Table]:
    """Tabulate the probes by model and budget, as means ± standard deviations over seeds."""
    local, fire = local_heads(heads), [row for row in heads if row.encoding == "fire"]
    share = {(*key, TRAINED): v for key, v in share_of_local_heads(heads).items()}
    shown: list[tuple[str, dict[tuple[str, int, int], list[float]], Sequence[int], str]] = [
        ("c", over_seeds(heads, lambda row: row.c), (64,), ".2f"),
        ("L", over_seeds(heads, lambda row: row.L), (64,), ".0f"),
        ("stretch", over_seeds(fire, lambda row: row.stretch), (256,), ".2f"),
        ("range of the bias", over_seeds(heads, lambda row: row.range), (64, 1024), ".1f"),
        ("heads with a learned distance", share, (64,), ".2f"),
        ("lead of that distance", over_seeds(local, lambda row: row.lead), (64, 256), ".2f"),
        ("attention to it", over_seeds(local, lambda row: row.at_peak), (64, 256), ".2f"),
        ("attention beyond T", over_seeds(heads, lambda row: row.beyond), (256, 1024), ".2f"),
        ("entropy", over_seeds(heads, lambda row: row.entropy), (64, 1024), ".2f"),
    ]
    models = sorted({(name_of(row), row.tokens) for row in heads})
    body = []
    for what, means, lengths, form in shown:
        for length in lengths:
            at = "" if lengths == (64,) else f", at {length}"
            cells = [_cell(means.get((*model, length), []), form) for model in models]
            body.append([f"{what}{at}", *cells])
    names = [f"{name}, {tokens_in_words(tokens)}" for name, tokens in models]
    return [Table("", ["means over heads", *names], body), _cost_table(costs(parts))]


def _cost_table(found: Mapping[tuple[int, int], Mapping[str, Sequence[float]]]) -> Table:
    budgets = sorted({tokens for tokens, _ in found})
    lengths = sorted({length for _, length in found if length > TRAINED})
    body = [
        [
            f"{name}, at {length}",
            *(_cell(found[tokens, length][name], "+.3f") for tokens in budgets),
        ]
        for length in lengths
        for name in PARTS_OF_COST
    ]
    return Table("", ["loss above the frozen FIRE", *map(tokens_in_words, budgets)], body)


def _cell(values: Sequence[float], form: str) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return ""
    spread = f" ± {statistics.stdev(known):{form.lstrip('+')}}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):{form}}{spread}"


def part_of_page(
    heads: Sequence[HeadRow], parts: Sequence[PartRow], curves: Sequence[CurveRow]
) -> str:
    """Return the part of the page that contains the figure and the tables."""
    probes, cost = tables(heads, parts)
    return "\n\n".join([f"![why FIRE drifts]({FIGURE})", cost.markdown(), probes.markdown()])


def rows() -> tuple[list[HeadRow], list[PartRow], list[CurveRow]]:
    return (
        read_table(epath.Path(FOLDER / HEADS), HeadRow),
        read_table(epath.Path(FOLDER / PARTS), PartRow),
        read_table(epath.Path(FOLDER / CURVES), CurveRow),
    )


def main() -> None:
    image = draw(*rows())
    (FOLDER / Path(FIGURE).name).write_text(image.svg)
    page_parts.write(PAGE, Path(__file__).name, part_of_page(*rows()))
    print(f"wrote {FOLDER / Path(FIGURE).name} and the tables of docs/{PAGE}")


if __name__ == "__main__":
    main()
