"""The values of any measure by length, as a report reads them from measures/NAME.csv of a run."""

from __future__ import annotations

import csv
import dataclasses
import io
import math

from etils import epath

from fire_lm.results.own_rows import once
from fire_lm.storage import children, read_bytes

FOLDER = "measures"
_REQUIRED = ("run", "encoding", "variant", "step", "length", "value")


@dataclasses.dataclass(frozen=True)
class MeasuredValue:
    """The value of a measure for a run, a checkpoint and a length.

    Attributes:
      measure: The name of the measure.
      part: The other columns of its table with their values, such as "layer 2", or "".
      stderr: The standard error of the value over what was measured; NaN if it is unknown.
    """

    measure: str
    run: str
    encoding: str
    variant: str
    step: int
    part: str
    length: int
    value: float
    stderr: float

    @property
    def key(self) -> tuple[str | int, ...]:
        """The values that identify the row."""
        return dataclasses.astuple(self)[:-2]


def read_measures(workdir: epath.Path, encoding: str) -> tuple[list[MeasuredValue], list[str]]:
    """Return the values in the tables of a run, and a message for each table that is damaged.

    Every table has the columns run, encoding, variant, step, length and value, and may have stderr;
    tables without these columns are not by length and are left out. Values are returned under the
    current name of the run. Rows of another encoding belong to other runs; of rows under several
    names of the run, those of one name are kept.

    Raises:
      RunFailed: A file cannot be read.
    """
    files = [path for path in children(workdir / FOLDER) if path.name.endswith(".csv")]
    values, damaged = [], []
    for file in sorted(files):
        try:
            values += _values(file.name.removesuffix(".csv"), read_bytes(file), workdir, encoding)
        except (ValueError, csv.Error) as error:
            damaged.append(
                f"{file} is left out, because it is damaged ({error}): move, correct or delete it"
            )
    return once(values, workdir.name), damaged


def _values(
    measure: str, content: bytes | None, workdir: epath.Path, encoding: str
) -> list[tuple[str, MeasuredValue]]:
    """Return the values in a table, each with the name that the run had.

    Raises:
      ValueError, csv.Error: The table is damaged.
    """
    text = (content or b"").decode()
    whole = text[: text.rfind("\n") + 1]  # without an incomplete last line
    table = csv.DictReader(io.StringIO(whole, newline=""))
    if not set(_REQUIRED) <= set(table.fieldnames or ()):
        return []
    values = []
    for row in table:
        if row["encoding"] != encoding:
            continue
        others = {name: row[name] for name in row if name not in (*_REQUIRED, "stderr")}
        try:
            step, length = int(row["step"]), int(row["length"])
            value, error = float(row["value"]), float(row.get("stderr") or math.nan)
        except (TypeError, ValueError):
            raise ValueError(f"a line without numbers: {row}") from None
        part = ", ".join(f"{name} {text}" for name, text in others.items())
        place = (workdir.name, encoding, row["variant"], step, part, length)
        values.append((row["run"], MeasuredValue(measure, *place, value, error)))
    return values
