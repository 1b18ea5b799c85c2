"""The time of each encoding relative to NoPE, as in Figure 5 of the FIRE paper.

usage: .venv/bin/python scripts/studies/model_times.py FILE [--output DIR]

FILE is what `fire-lm bench model --json=FILE` wrote.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import command

from fire_lm.errors import UserError
from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture, Section, Table, as_markdown
from fire_lm.reporting.report import check_is_reports, write_page
from fire_lm.results import bench_times
from fire_lm.results.bench_times import ModelTimes
from fire_lm.storage import place

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def section(times: ModelTimes) -> Section:
    """Return the section on times, with a figure if several lengths were measured."""
    left_out = [f"Not measured: {'; '.join(times.left_out)}."] if times.left_out else []
    several = len({row.length for row in times.rows}) > 1  # a line requires two lengths or more
    parts: list[Table | Picture] = [_table(times), *([_picture(times)] if several else [])]
    return Section("Forward time", [f"{times.where}.", *left_out], parts)


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


def _picture(times: ModelTimes) -> Picture:
    encodings = sorted({row.encoding for row in times.rows})
    lengths = sorted({row.length for row in times.rows})

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        styles = charts.styles(encodings)
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


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Times of encodings relative to NoPE.")
    parser.add_argument("file", metavar="FILE", help="written by `fire-lm bench model --json=FILE`")
    parser.add_argument("--output", metavar="DIR", help="folder for a page with the figure")
    parsed = parser.parse_args(arguments)
    if not place(parsed.file).is_file():
        raise UserError(f"there is no file {parsed.file}")
    made = [section(bench_times.read(place(parsed.file)))]
    if parsed.output:
        check_is_reports(place(parsed.output))
        write_page(place(parsed.output), "Times", made)
    else:
        print(as_markdown("Times", made))


if __name__ == "__main__":
    sys.exit(command.refusing(main, sys.argv[1:]))
