"""The time of each encoding relative to NoPE, as in Figure 5 of the FIRE paper.

usage: .venv/bin/python scripts/studies/model_times.py FILE [--output DIR]

FILE is what `fire-lm bench model --json=FILE` wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import command
from etils import epath

from fire_lm.bench.model import statistic
from fire_lm.errors import RunFailed, UserError
from fire_lm.reporting import charts
from fire_lm.reporting.page import Picture, Section, Table, as_markdown
from fire_lm.reporting.report import check_is_reports, write_page
from fire_lm.storage import place

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Times = dict[str, Any]


def read(path: epath.PathLike) -> Times:
    """Read the results of a benchmark, and check that its rows can be shown.

    Raises:
      RunFailed: The file is damaged, or was not written by `fire-lm bench model`.
    """
    try:
        times = json.loads(epath.Path(path).read_text())
        if times["benchmark"] == "model" and where(times) and _table(times):
            return {"protocol": "best", "devices": 1, **times}  # files of before have neither
    except (ValueError, LookupError, TypeError):
        pass
    raise RunFailed(
        f"{path} was not written by `fire-lm bench model`, or is damaged: "
        "run `fire-lm bench model --json=FILE` and specify that file"
    )


def where(times: Times) -> str:
    """Return a line that describes the machine, the date and the model."""
    machine, count = times["machine"], times.get("devices", 1)
    device = "one core" if len(machine["cores"]) == 1 else f"{len(machine['cores'])} cores"
    if machine["backend"] != "cpu":
        device = "one device" if count == 1 else f"{count} devices"
    return (
        f"{machine['date']}, {device} of {machine['processor']}, jax {machine['versions']['jax']}; "
        f"{times['model']}; {machine['clock']} time, {statistic({'protocol': 'best', **times})}"
    )


def section(times: Times) -> Section:
    """Return the section on times, with a figure if several lengths were measured."""
    left_out = [f"Not measured: {'; '.join(times['left_out'])}."] if times["left_out"] else []
    several = len({row["length"] for row in times["rows"]}) > 1  # a line needs two lengths or more
    parts: list[Table | Picture] = [_table(times), *([_picture(times)] if several else [])]
    return Section("Forward time", [f"{where(times)}.", *left_out], parts)


def _table(times: Times) -> Table:
    lengths = sorted({row["length"] for row in times["rows"]})
    cells = {
        (row["encoding"], row["length"]): (
            f"{1e3 * row['forward']['seconds']:.1f} ms, x{row['forward']['x_nope']:.2f}; "
            f"training x{row['train']['x_nope']:.2f}"
        )
        for row in times["rows"]
    }
    encodings = list(dict.fromkeys(row["encoding"] for row in times["rows"]))
    rows = [[name, *(cells.get((name, length), "") for length in lengths)] for name in encodings]
    caption = (
        "Time of a forward pass over a batch, and the times of a forward pass and of a training "
        "step relative to NoPE."
    )
    return Table(caption, ["", *map(str, lengths)], rows)


def _picture(times: Times) -> Picture:
    encodings = sorted({row["encoding"] for row in times["rows"]})
    lengths = sorted({row["length"] for row in times["rows"]})

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        styles = charts.styles(encodings)
        for name in encodings:
            own = sorted(
                (row for row in times["rows"] if row["encoding"] == name),
                key=lambda row: row["length"],
            )
            axes.plot(
                [row["length"] for row in own],
                [row["forward"]["x_nope"] for row in own],
                label=name,
                markersize=4,
                **styles[name],
            )
        charts.length_axis(axes, lengths)
        axes.set_ylabel("forward time relative to NoPE")
        charts.legend_below(figure, [axes])

    longest = [row for row in times["rows"] if row["length"] == lengths[-1]]
    told = ", ".join(f"{row['encoding']} {row['forward']['x_nope']:.2f}" for row in longest)
    return Picture(
        name="forward_time",
        caption=f"Forward time relative to NoPE, {lengths[0]} to {lengths[-1]} tokens. "
        f"{where(times)}.",
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
    made = [section(read(place(parsed.file)))]
    if parsed.output:
        check_is_reports(place(parsed.output))
        write_page(place(parsed.output), "Times", made)
    else:
        print(as_markdown("Times", made))


if __name__ == "__main__":
    sys.exit(command.refusing(main, sys.argv[1:]))
