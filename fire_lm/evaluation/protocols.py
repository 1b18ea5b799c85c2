"""Protocols: which tokens a sweep scores and with which context, as windows into rows of text.

The rows are the same at every length (text_choice.py). Each protocol scores the same tokens at
every length, whether the length divides a row or not, so lengths differ only in the context:

- `full`: the row is split into parts, each read in one forward pass from its own start. All tokens
  are scored; the token at position i of its part has a context of i tokens (as in the paper,
  section 4.1). If the length does not divide the row, the last part is shorter, like the last part
  of a document in the paper.
- `last256`: the last 256 tokens of the row are scored, in one pass that ends with the row: each has
  a context of at least length - 256 tokens.
- `sliding`: windows start `stride` apart; the first scores all of its tokens, the others their last
  `stride`. After the first `length` tokens of the row, each token has a context of at least
  length - stride tokens.

A window that extends beyond the row is padded at its end; padding is never scored.
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
    """Windows into each row, with the tokens that are scored in each window.

    Attributes:
      starts: The start of each window in the row, `[W]`.
      scored_from: The first position in each window that is scored, `[W]`.
      length: The number of tokens in a window.
    """

    starts: np.ndarray
    scored_from: np.ndarray
    length: int

    def of(self, rows_RT: np.ndarray) -> np.ndarray:
        """Return the windows of rows `[R, T]` as `[R * W, length]`, with 0 beyond a row's end."""
        places_WT = self.starts[:, None] + np.arange(self.length)
        beyond = max(0, int(places_WT.max()) + 1 - rows_RT.shape[1])
        rows_RT = np.pad(rows_RT, ((0, 0), (0, beyond)))
        return rows_RT[:, places_WT].reshape(-1, self.length)

    def scored(self, rows: int) -> np.ndarray:
        """Return which tokens of the windows are scored, bool `[rows * W, length]`."""
        return np.tile(np.arange(self.length) >= self.scored_from[:, None], (rows, 1))

    def scored_places(self, longest: int) -> np.ndarray:
        """Return which positions of a row are scored in any window, bool `[longest]`."""
        scored_T = np.zeros(longest, bool)
        for start, first in zip(self.starts, self.scored_from, strict=True):
            scored_T[start + first : start + self.length] = True
        return scored_T


def check_names(protocols: Sequence[str]) -> None:
    """Raise UserError if a protocol does not exist, or none is given."""
    if not protocols:
        raise UserError(f"length_sweep.protocols is empty: choose from {', '.join(NAMES)}")
    for protocol in protocols:
        if protocol not in NAMES:
            raise UserError(
                f"length_sweep.protocols: there is no '{protocol}', only {', '.join(NAMES)}"
            )


def windows(protocol: str, length: int, longest: int, stride: int = 256) -> Windows:
    """Return the windows of a protocol in rows of `longest` tokens.

    Raises:
      UserError: There is no such protocol, or it does not support the length.
    """
    if protocol == "full":
        starts = np.arange(0, longest, length)
        return Windows(starts, np.zeros_like(starts), length)
    if protocol == f"last{_LAST}":
        if length < _LAST:
            raise UserError(f"{protocol} needs lengths of {_LAST} tokens or more, not {length}")
        return Windows(np.array([longest - length]), np.array([length - _LAST]), length)
    if protocol == "sliding":
        if stride < 1 or length % stride:
            raise UserError(
                f"length_sweep.stride = {stride} does not divide the evaluation length {length}, "
                "so the windows of different lengths would not end at the same tokens"
            )
        starts = np.arange(0, longest - length + stride, stride)
        return Windows(starts, np.where(starts == 0, 0, length - stride), length)
    check_names([protocol])
    raise ValueError(f"{protocol} is a known name without windows")


def named(protocol: str, stride: int) -> str:
    """Return the protocol's name in tables; a stride other than 256 makes another protocol."""
    return f"{protocol}-{stride}" if protocol == "sliding" and stride != 256 else protocol
