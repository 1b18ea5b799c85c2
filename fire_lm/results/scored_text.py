"""The file `scored_text.csv`: the text behind each row of `length_sweep.csv`, with its losses.

The columns of `length_sweep.csv` are a contract with users' scripts, so this is a separate file
with one line per row. A line belongs to the row with the same key and the same loss: moving,
copying or deleting one of the two files cannot give a row the text of another. A row without a
line, such as one from an older version, has an unrecorded text, which never counts as the text of a
row that has a line.
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
# The relative tolerance between two sums of the same losses, which devices add in different orders.
_SAME = 1e-5


@dataclasses.dataclass(frozen=True)
class ScoredText(Keyed):
    """The text of a sweep's row. The fields up to `length` are the key of both.

    Attributes:
      text: A hash of the token ids.
      nll: The nats per token, as in the sweep's row.
      tokens_by_row: The number of tokens in each row of text, separated by spaces.
      nll_by_row: The summed nats of each row of text, separated by spaces.
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
    """Return the scored text of a new row, from the tokens and summed nats of each row of text."""
    by_row = (" ".join(map(str, tokens_R.tolist())), " ".join(f"{nll:.9g}" for nll in nll_R))
    fields: tuple[Any, ...] = (*row.key, text, row.nll, *by_row)
    return ScoredText(*fields)


class Texts:
    """The texts on which rows were measured."""

    def __init__(self, lines: Iterable[ScoredText] = ()):
        self._lines: dict[tuple[str | int, ...], list[ScoredText]] = {}
        for line in lines:
            self._lines.setdefault(line.key, []).append(line)

    def line(self, row: SweepRow) -> ScoredText | None:
        """Return the line of a row, or None if there is none."""
        return next((line for line in self._lines.get(row.key, ()) if line.nll == row.nll), None)

    def of(self, row: SweepRow) -> str:
        """Return the text of a row, or `UNKNOWN` if it is not recorded."""
        found = self.line(row)
        return found.text if found else UNKNOWN

    def of_positions(self, bins: Sequence[PositionLoss]) -> str:
        """Return the text of all bins of one sweep, or `UNKNOWN` if it is not recorded.

        The bins come from the same forward pass as the row of their length, so together they have
        the same mean and the same number of tokens.
        """
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
        """Return the texts of rows by their keys."""
        return {row.key: self.of(row) for row in rows}

    def of_all_positions(self, rows: Iterable[PositionLoss]) -> dict[tuple[str | int, ...], str]:
        """Return the texts of rows by their keys."""
        sweeps: dict[tuple[str | int, ...], list[PositionLoss]] = {}
        for row in rows:
            sweeps.setdefault(row.key, []).append(row)
        return {key: self.of_positions(bins) for key, bins in sweeps.items()}


def read_texts(folder: epath.Path) -> Texts:
    """Read the texts of the rows of a folder's `length_sweep.csv`."""
    return Texts(read_table(folder / FILE, ScoredText))


def text_name(text: str) -> str:
    """Return the name of a text in tables and figures."""
    return f"text {text[:8]}" if text else "text not recorded"
