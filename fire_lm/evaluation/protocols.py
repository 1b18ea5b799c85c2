"""Protocols: which tokens a sweep scores and what each sees, as windows into rows of text.

The rows are the same at every length (text_choice.py). Every protocol scores the same tokens at
every length, whether it divides a row or not, so that lengths differ by context alone:

- `full`: the row cut into parts, each seen in one forward pass from its own start. All tokens are
  scored; one at place i of its part sees i others (the paper's way, section 4.1). Where the length
  does not divide the row, the last part is shorter, as the last part of a document is in the paper.
- `last256`: the last 256 tokens of the row, seen in one pass that ends with it: each sees
  length - 256 others or more.
- `sliding`: windows that start `stride` apart; the first scores all of its tokens, the others their
  last `stride`: after the first length tokens of the row each sees length - stride others or more.

A window that reaches beyond the row is filled up with padding, which is never scored and comes
after all that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fire_lm.errors import UserError

_LAST = 256
NAMES = ("full", f"last{_LAST}", "sliding")


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows into each row, and from where in each its tokens are scored.

    Attributes:
      starts: `[W]`, of each window in the row.
      scored_from: `[W]`, the first place of each window that is scored.
      length: tokens of a window.
    """

    starts: np.ndarray
    scored_from: np.ndarray
    length: int

    def of(self, rows_RT: np.ndarray) -> np.ndarray:
        """The windows of rows `[R, T]`, as `[R * W, length]`; 0 beyond the end of a row."""
        places_WT = self.starts[:, None] + np.arange(self.length)
        beyond = max(0, int(places_WT.max()) + 1 - rows_RT.shape[1])
        rows_RT = np.pad(rows_RT, ((0, 0), (0, beyond)))
        return rows_RT[:, places_WT].reshape(-1, self.length)

    def scored(self, rows: int) -> np.ndarray:
        """Which tokens of windows are scored, bool `[rows * W, length]`."""
        return np.tile(np.arange(self.length) >= self.scored_from[:, None], (rows, 1))

    def scored_places(self, longest: int) -> np.ndarray:
        """Which places of a row are scored, by any window, bool `[longest]`."""
        scored_T = np.zeros(longest, bool)
        for start, first in zip(self.starts, self.scored_from, strict=True):
            scored_T[start + first : start + self.length] = True
        return scored_T


def check_names(protocols: Sequence[str]) -> None:
    if not protocols:
        raise UserError(f"length_sweep.protocols is empty: name some of {', '.join(NAMES)}")
    for protocol in protocols:
        if protocol not in NAMES:
            raise UserError(
                f"length_sweep.protocols: there is no '{protocol}', only {', '.join(NAMES)}"
            )


def windows(protocol: str, length: int, longest: int, stride: int = 256) -> Windows:
    """The windows of a protocol in rows of `longest` tokens.

    Raises:
      UserError: there is no such protocol, or it does not fit the length.
    """
    if protocol == "full":
        starts = np.arange(0, longest, length)
        return Windows(starts, np.zeros_like(starts), length)
    if protocol == f"last{_LAST}":
        if length < _LAST:
            raise UserError(f"{protocol} takes lengths of {_LAST} tokens or more, not {length}")
        return Windows(np.array([longest - length]), np.array([length - _LAST]), length)
    if protocol == "sliding":
        if stride < 1 or length % stride:
            raise UserError(
                f"length_sweep.stride = {stride} does not divide the evaluation length {length}: "
                "then windows of one length would not end where those of another do"
            )
        starts = np.arange(0, longest - length + stride, stride)
        return Windows(starts, np.where(starts == 0, 0, length - stride), length)
    check_names([protocol])
    raise ValueError(f"{protocol} has a name and no windows")


def named(protocol: str, stride: int) -> str:
    """The protocol's name in tables; another stride than 256 is another protocol."""
    return f"{protocol}-{stride}" if protocol == "sliding" and stride != 256 else protocol
