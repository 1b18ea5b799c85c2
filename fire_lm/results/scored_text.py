"""The file `scored_text.csv`, which identifies the text scored in each row of a length sweep.

The columns of `length_sweep.csv` must not change, because users' scripts rely on them, so this
separate file has one line for each row. A line belongs to the row with the same key and the same
loss, so moving, copying or deleting one of the two files cannot assign the text of one row to
another row. For a row without a line, such as a row from an older version, the text is unknown and
is never considered identical to the text of a row with a line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fire_lm.results.sweep_rows import SweepKey, SweepRow
from fire_lm.results.tables import PositionLoss

FILE = "scored_text.csv"
UNKNOWN = ""
# The relative tolerance between two sums of the same losses, which devices may add in different
# orders.
_SAME = 1e-5


@dataclasses.dataclass(frozen=True)
class ScoredText(SweepKey):
    """The text scored in a row of `length_sweep.csv`, with the loss of each row of text.

    Attributes:
      text: A hash of the token ids.
      nll: The mean loss in nats per token, as in `length_sweep.csv`.
      tokens_by_row: The numbers of tokens in the rows of text, separated by spaces.
      nll_by_row: The losses of the rows of text in nats, each summed over the row's tokens,
        separated by spaces.
    """

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
    """Return the line of `scored_text.csv` for a new row of a length sweep.

    Args:
      text: A hash of the token ids.
      tokens_R: The number of tokens in each row of text.
      nll_R: The loss of each row of text in nats, summed over the row's tokens.
    """
    by_row = (" ".join(map(str, tokens_R.tolist())), " ".join(f"{nll:.9g}" for nll in nll_R))
    fields: tuple[Any, ...] = (*row.key, text, row.nll, *by_row)
    return ScoredText(*fields)


class Texts:
    """A lookup of the texts that were scored in the rows of length sweeps."""

    def __init__(self, lines: Iterable[ScoredText] = ()):
        self._lines: dict[tuple[str | int, ...], list[ScoredText]] = {}
        for line in lines:
            self._lines.setdefault(line.key, []).append(line)

    def line(self, row: SweepRow) -> ScoredText | None:
        """Return the line that belongs to a row, or None if there is no such line."""
        return next((line for line in self._lines.get(row.key, ()) if line.nll == row.nll), None)

    def of(self, row: SweepRow) -> str:
        """Return the hash of a row's text, or `UNKNOWN` if the text is not recorded."""
        line = self.line(row)
        return line.text if line else UNKNOWN

    def of_positions(self, bins: Sequence[PositionLoss]) -> str:
        """Return the hash of the text of one sweep's bins, or `UNKNOWN` if it is not recorded.

        The bins come from the same forward pass as the row of the same length, so their combined
        mean and number of tokens are those of this row.
        """
        first = bins[0]
        key = (*first.key[:-1], "full", first.length)
        tokens = sum(row.tokens for row in bins)
        mean = math.fsum(row.nll * row.tokens for row in bins) / tokens
        for line in self._lines.get(key, ()):
            same_mean = math.isclose(mean, line.nll, rel_tol=_SAME)
            if same_mean and tokens == int(line.tokens_R.sum()):
                return line.text
        return UNKNOWN

    def of_rows(self, rows: Iterable[SweepRow]) -> dict[tuple[str | int, ...], str]:
        """Return the hash of each row's text, by the key of the row."""
        return {row.key: self.of(row) for row in rows}

    def of_all_positions(self, rows: Iterable[PositionLoss]) -> dict[tuple[str | int, ...], str]:
        """Return the hash of each sweep's text, by the key that the sweep's rows share."""
        sweeps: dict[tuple[str | int, ...], list[PositionLoss]] = {}
        for row in rows:
            sweeps.setdefault(row.key, []).append(row)
        return {key: self.of_positions(bins) for key, bins in sweeps.items()}


def text_name(text: str) -> str:
    """Return the name that tables and figures show for the text with a given hash."""
    return f"text {text[:8]}" if text else "text not recorded"
