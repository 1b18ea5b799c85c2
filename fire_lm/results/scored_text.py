"""`scored_text.csv`: which text each row of `length_sweep.csv` is of, and its loss by row of text.

The columns of `length_sweep.csv` are a contract with users' scripts, so this stands beside it, a
line for a line. A line belongs to the row of the same key and the same loss: moving, copying or
deleting one of the two files cannot give a row a text that is not its own. A row without a line,
such as one of an older version, is of a text that is not recorded, and is never taken for the same
text as a row that has one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from etils import epath

from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import Keyed, PositionLoss, read_table

FILE = "scored_text.csv"
UNKNOWN = ""
# Within which two sums of the same losses agree: another device adds them up in another order.
_SAME = 1e-5


@dataclasses.dataclass(frozen=True)
class ScoredText(Keyed):
    """The text of a sweep's row. The fields up to `length` are its key, and the row's.

    Attributes:
      text: a hash of the token ids.
      nll: nats per token, as in the row.
      tokens_by_row, nll_by_row: tokens and summed nats of each row of text, with spaces between.
    """

    run: str
    encoding: str
    variant: str
    step: int
    dataset: str
    split: str
    construction: str
    protocol: str
    length: int
    text: str
    nll: float
    tokens_by_row: str
    nll_by_row: str

    @property
    def tokens_R(self) -> np.ndarray:
        return np.array(self.tokens_by_row.split(), np.int64)

    @property
    def nll_R(self) -> np.ndarray:
        return np.array(self.nll_by_row.split(), np.float64)


def scored_text(row: SweepRow, text: str, tokens_R: np.ndarray, nll_R: np.ndarray) -> ScoredText:
    """The scored text of a new row, from the tokens and summed nats of each row of text."""
    by_row = (" ".join(map(str, tokens_R.tolist())), " ".join(f"{nll:.9g}" for nll in nll_R))
    fields: tuple[Any, ...] = (*row.key, text, row.nll, *by_row)
    return ScoredText(*fields)


class Texts:
    """The texts of rows."""

    def __init__(self, lines: Iterable[ScoredText] = ()):
        self._lines: dict[tuple[str | int, ...], list[ScoredText]] = {}
        for line in lines:
            self._lines.setdefault(line.key, []).append(line)

    def line(self, row: SweepRow) -> ScoredText | None:
        """The text of a row, if one was written with it."""
        return next((line for line in self._lines.get(row.key, ()) if line.nll == row.nll), None)

    def of(self, row: SweepRow) -> str:
        """`UNKNOWN` where it is not recorded."""
        found = self.line(row)
        return found.text if found else UNKNOWN

    def of_positions(self, bins: Sequence[PositionLoss]) -> str:
        """Of all bins of one sweep: they are of one forward pass with the row of their length, and
        so are together as much as it is."""
        one = bins[0]
        key = (*one.key[:-1], "full", one.length)
        tokens = sum(row.tokens for row in bins)
        mean = math.fsum(row.nll * row.tokens for row in bins) / tokens
        for line in self._lines.get(key, ()):
            same_mean = math.isclose(mean, line.nll, rel_tol=_SAME)
            if same_mean and tokens == int(line.tokens_R.sum()):
                return line.text
        return UNKNOWN

    def of_rows(self, rows: Iterable[SweepRow]) -> dict[tuple[str | int, ...], str]:
        """Map rows to their texts, by key."""
        return {row.key: self.of(row) for row in rows}

    def of_all_positions(self, rows: Iterable[PositionLoss]) -> dict[tuple[str | int, ...], str]:
        """Map rows to their texts, by key."""
        sweeps: dict[tuple[str | int, ...], list[PositionLoss]] = {}
        for row in rows:
            sweeps.setdefault(row.key, []).append(row)
        return {key: self.of_positions(bins) for key, bins in sweeps.items()}


def read_texts(folder: epath.Path) -> Texts:
    """Read the texts of the rows of a folder's `length_sweep.csv`."""
    return Texts(read_table(folder / FILE, ScoredText))


def text_name(text: str) -> str:
    """The name of a text in tables and figures."""
    return f"text {text[:8]}" if text else "text not recorded"
