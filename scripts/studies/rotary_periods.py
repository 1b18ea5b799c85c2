"""The periods of rotary encodings in positions, compared with the training length.

usage: .venv/bin/python scripts/studies/rotary_periods.py RUN ... [--output DIR]

Source: "LLM Long Context" (2024), "How to choose RoPE base": pair i of d dims has the period
P_i = 2 pi base^(2i/d). During training, a model sees full turns of only those dims whose period
does not exceed the training length.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import command

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.results.folder import Results, RunFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def dims_that_fit(periods: Sequence[float], length: int) -> int:
    """Return the number of rotated dims, two per pair, whose period is at most `length`."""
    return 2 * sum(period <= length for period in periods)


def sections(results: Results) -> list[Section]:
    """Return a list with the section on rotary periods, or [] if no encoding is rotary."""
    found = _by_arm(results)
    if not found:
        return []
    rows = [
        [
            arm,
            str(2 * len(periods)),
            f"{min(periods):,.1f} to {max(periods):,.0f}",
            str(run.train_length),
            str(dims_that_fit(periods, run.train_length)),
        ]
        for arm, (run, periods) in found.items()
    ]
    header = ["", "rotated dims", "periods", "trained at", "dims whose period fits"]
    caption = "Periods are in positions. Dims are counted per head, two for each pair."
    return [Section("Rotary periods", [], [_picture(found), Table(caption, header, rows)])]


_Arms = Mapping[str, tuple[RunFacts, Sequence[float]]]


def _by_arm(results: Results) -> _Arms:
    """Return, for each arm with a rotary encoding, its first run and the periods.

    The periods are the same for all runs of an arm.
    """
    periods: dict[str, list[float]] = {}
    for row in results.periods:
        periods.setdefault(row.run, []).append(row.period)
    return {
        arm: (run, periods[run.run])
        for arm, runs in results.arms().items()
        for run in runs[:1]
        if run.run in periods
    }


def _picture(found: _Arms) -> Picture:
    styles = charts.styles(list(found))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for arm, (_, periods) in found.items():
            axes.plot(periods, range(len(periods)), label=arm, **{**styles[arm], "markersize": 3})
        axes.set_xscale("log")
        charts.training_length(axes, [run.train_length for run, _ in found.values()])
        axes.set_xlabel("period (positions)")
        axes.set_ylabel("pair of rotated dims")
        charts.legend_below(figure, [axes])

    fits = "; ".join(
        f"{arm}: {dims_that_fit(periods, run.train_length)} of {2 * len(periods)} dims fit"
        for arm, (run, periods) in found.items()
    )
    return Picture(
        name="rotary_periods",
        caption="The number of positions in which each pair of rotated dims makes a full turn; "
        "dotted: the training length. Periods to the left of it fit in a training sequence.",
        alt=f"Line chart of rotary periods by pair of dims. {fits}.",
        image=charts.drawn(draw, *charts.size(list(found))),
    )


if __name__ == "__main__":
    sys.exit(command.page_of("Rotary periods", sections))
