"""The time of each encoding relative to NoPE, as in Figure 5 of the FIRE paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.results.bench_times import ModelTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Forward time"


def section(times: ModelTimes | None, whose: str, arms: Sequence[str]) -> Section:
    """Return the section on times, with a figure if several lengths were measured.

    Args:
      times: The results of the benchmark, or None.
      whose: A sentence that states to which models the times belong, or "" if they belong to the
        models of the report's runs.
      arms: The arms of the report, whose styles the figure uses.
    """
    if times is None:
        told = "Not measured: run `fire-lm bench model --json=FILE`, then report with --bench=FILE."
        return Section(_TITLE, [told])
    left_out = [f"Not measured: {'; '.join(times.left_out)}."] if times.left_out else []
    words = [told for told in (whose, f"{times.where}.", *left_out) if told]
    several = len({row.length for row in times.rows}) > 1  # a line requires two lengths or more
    return Section(_TITLE, words, [_table(times), *([_picture(times, arms)] if several else [])])


def _table(times: ModelTimes) -> Table:
    lengths = sorted({row.length for row in times.rows})
    cells = {
        (
            row.encoding,
            row.length,
        ): f"{1e3 * row.forward.seconds:.1f} ms, x{row.forward.x_nope:.2f}; "
        f"training x{row.train.x_nope:.2f}"
        for row in times.rows
    }
    encodings = list(dict.fromkeys(row.encoding for row in times.rows))
    rows = [[name, *(cells.get((name, length), "") for length in lengths)] for name in encodings]
    caption = (
        "Time of a forward pass over a batch, and the times of a forward pass and of a training "
        "step relative to NoPE."
    )
    return Table(caption, ["", *map(str, lengths)], rows)


def _picture(times: ModelTimes, arms: Sequence[str]) -> Picture:
    encodings = sorted({row.encoding for row in times.rows})
    lengths = sorted({row.length for row in times.rows})

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        others = [name for name in encodings if name not in arms]
        styles = charts.styles([*arms, *others])  # an arm has the same style in all figures
        for name in encodings:
            own = sorted(
                (row for row in times.rows if row.encoding == name), key=lambda r: r.length
            )
            axes.plot(
                [row.length for row in own],
                [row.forward.x_nope for row in own],
                label=name,
                markersize=4,
                **styles[name],
            )
        charts.length_axis(axes, lengths)
        axes.set_ylabel("forward time relative to NoPE")
        charts.legend_below(figure, [axes])

    longest = [row for row in times.rows if row.length == lengths[-1]]
    told = ", ".join(f"{row.encoding} {row.forward.x_nope:.2f}" for row in longest)
    return Picture(
        name="forward_time",
        caption=f"Forward time relative to NoPE, {lengths[0]} to {lengths[-1]} tokens. "
        f"{times.where}.",
        alt=f"Line chart of forward time relative to NoPE against length. At {lengths[-1]}: "
        f"{told}.",
        image=charts.drawn(draw, *charts.size(encodings)),
    )
