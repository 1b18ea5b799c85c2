"""The one table in which every benchmark prints its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fire_lm.bench.race import Row
from fire_lm.console import columns


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      key: The key of the value in its row; `forward.seconds` is `row["forward"]["seconds"]`.
      form: How numbers are formatted, as in `format(value, form)`.
      scale: A factor for numbers. An absent value is printed as `-`.
    """

    heading: str
    key: str
    form: str = ""
    scale: float = 1

    def cell(self, row: Row) -> str:
        value: Any = row
        for part in self.key.split("."):
            value = value[part]
        if value is None:
            return "-"
        return format(value if self.scale == 1 else value * self.scale, self.form)


def mebibytes(heading: str, key: str, form: str = ".0f") -> Column:
    return Column(heading, key, form, 2.0**-20)


def cost_columns(call: str) -> list[Column]:
    """Return the columns of a call's cost, in seconds."""
    return [
        Column(f"{call} s", f"{call}.seconds", ".4g"),
        Column("wall", f"{call}.wall_s", ".4g"),
        Column("x NoPE", f"{call}.x_nope", ".2f"),
        Column("max/min", f"{call}.spread", ".2f"),
        mebibytes("MiB", f"{call}.temp_bytes"),
    ]


def short_cost_columns(call: str) -> list[Column]:
    """Return the columns of a call's cost that matter most, in milliseconds."""
    return [
        Column(f"{call} ms", f"{call}.seconds", ".4g", 1e3),
        Column("x NoPE", f"{call}.x_nope", ".2f"),
    ]


def table(rows: Sequence[Row], shown: Sequence[Column], words: int = 1) -> str:
    """Format a table; the first `words` columns contain text, the others numbers."""
    header = [column.heading for column in shown]
    lines = columns([header, *([column.cell(row) for column in shown] for row in rows)], words)
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def machine_text(machine: Row) -> str:
    """Format the description of a machine as two lines."""
    cores = machine["cores"]
    where = f"core {cores[0]}" if len(cores) == 1 else f"{len(cores)} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['date']}, {machine['processor']}, {where}, load {machine['load']:.1f}\n"
        f"{versions}; backend {machine['backend']}"
    )


def publish(file: str | None, report: Row, text: str) -> None:
    """Print `text`, and write the report to `file` as JSON unless it is None."""
    print(text)
    if file:
        Path(file).write_text(json.dumps(report, indent=1) + "\n")
