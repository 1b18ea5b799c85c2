"""The values of any measure by length, as a report reads them from measures/NAME.csv of a run."""

from __future__ import annotations

import csv
import dataclasses
import io
import math

from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.results.own_rows import once
from fire_lm.results.tables import read_text
from fire_lm.storage import children

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


def read_measures(workdir: epath.Path, encoding: str) -> list[MeasuredValue]:
    """Return the values in the tables of a run, under the current name of the run.

    Every table has the columns run, encoding, variant, step, length and value, and may have stderr;
    tables without these columns are not by length and are left out. Rows of another encoding belong
    to other runs; of rows under several names of the run, those of one name are kept.

    Raises:
      RunFailed: A file is not text, or a value is not a number.
    """
    folder = workdir / FOLDER
    files = [path for path in children(folder) if path.name.endswith(".csv")]
    values = []
    for file in sorted(files):
        text = read_text(file)
        whole = text[: text.rfind("\n") + 1]  # without an incomplete last line
        table = csv.DictReader(io.StringIO(whole, newline=""))
        if not set(_REQUIRED) <= set(table.fieldnames or ()):
            continue
        for row in table:
            if row["encoding"] != encoding:
                continue
            others = {name: row[name] for name in row if name not in (*_REQUIRED, "stderr")}
            try:
                step, length = int(row["step"]), int(row["length"])
                value, error = float(row["value"]), float(row.get("stderr") or math.nan)
            except (TypeError, ValueError):
                raise RunFailed(f"{file} has a line without numbers: {row}") from None
            part = ", ".join(f"{name} {text}" for name, text in others.items())
            name = file.name.removesuffix(".csv")
            place = (workdir.name, encoding, row["variant"], step, part, length)
            values.append((row["run"], MeasuredValue(name, *place, value, error)))
    return once(values, workdir.name)
