"""Protocols, which determine the tokens that a sweep scores and the context of each token.

A protocol divides rows of text into windows; the rows are the same at every length
(text_choice.py). Each protocol scores the same tokens at every length, whether or not the length
divides a row, so results at different lengths differ only in the context:

- `full`: The row is split into parts, each of which is read from its start in one forward pass. All
  tokens are scored, and the token at position i of a part has a context of i tokens, as in section
  4.1 of the paper. If the length does not divide the row, the last part is shorter, like the last
  part of a document in the paper.
- `last256`: The last 256 tokens of the row are scored in one forward pass that ends with the row.
  Each of these tokens has a context of at least length - 256 tokens.
- `sliding`: The windows start `stride` tokens apart. All tokens of the first window are scored, but
  only the last `stride` tokens of each later window. After the first `length` tokens of the row,
  each token has a context of at least length - stride tokens.

A window that extends beyond the row is padded at the end, and padding is never scored. If the model
depends on the length of its input, such a window is read as an input of its own, shorter length.

Shape suffixes: R = rows of text, T = tokens of a row, W = windows of a row.
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
    """The windows into each row of text, and the tokens that are scored in each window.

    Attributes:
      starts: The position in the row at which each window starts, `[W]`.
      scored_from: The first scored position within each window, `[W]`.
      length: The number of tokens in a window.
    """

    starts: np.ndarray
    scored_from: np.ndarray
    length: int

    def of(self, rows_RT: np.ndarray) -> np.ndarray:
        """Split rows `[R, T]` into windows `[R * W, length]`, with zeros beyond each row."""
        places_WT = self.starts[:, None] + np.arange(self.length)
        beyond = max(0, int(places_WT.max()) + 1 - rows_RT.shape[1])
        rows_RT = np.pad(rows_RT, ((0, 0), (0, beyond)))
        return rows_RT[:, places_WT].reshape(-1, self.length)

    def scored(self, rows: int) -> np.ndarray:
        """Return which tokens of the windows are scored, bool `[rows * W, length]`."""
        return np.tile(np.arange(self.length) >= self.scored_from[:, None], (rows, 1))

    def tokens(self, longest: int) -> np.ndarray:
        """Return the number of tokens of each window that lie in a row of `longest`, `[W]`."""
        return np.minimum(self.length, longest - self.starts)

    def scored_places(self, longest: int) -> np.ndarray:
        """Return which positions of a row are scored in any window, bool `[longest]`."""
        scored_T = np.zeros(longest, bool)
        for start, first in zip(self.starts, self.scored_from, strict=True):
            scored_T[start + first : start + self.length] = True
        return scored_T


def check_names(protocols: Sequence[str]) -> None:
    """Raise UserError if `protocols` is empty or contains an unknown name."""
    if not protocols:
        raise UserError(f"length_sweep.protocols is empty: choose from {', '.join(NAMES)}")
    for protocol in protocols:
        if protocol not in NAMES:
            raise UserError(
                f"length_sweep.protocols: there is no protocol '{protocol}': choose from "
                f"{', '.join(NAMES)}"
            )


def windows(protocol: str, length: int, longest: int, stride: int = 256) -> Windows:
    """Return the windows into which a protocol divides rows of `longest` tokens.

    Args:
      protocol: The name of the protocol.
      length: The number of tokens in a window.
      longest: The number of tokens in a row.
      stride: The number of tokens between the starts of the windows of `sliding`.

    Raises:
      UserError: The protocol does not exist, or does not support the length.
    """
    if protocol == "full":
        starts = np.arange(0, longest, length)
        return Windows(starts, np.zeros_like(starts), length)
    if protocol == f"last{_LAST}":
        if length < _LAST:
            raise UserError(
                f"the protocol {protocol} needs lengths of {_LAST} tokens or more, not {length}: "
                "change EVAL_LENGTHS or length_sweep.protocols"
            )
        return Windows(np.array([longest - length]), np.array([length - _LAST]), length)
    check_names([protocol])  # "sliding" remains
    if stride < 1 or length % stride:
        raise UserError(
            f"length_sweep.stride = {stride} does not divide the evaluation length {length}, "
            "so the windows of different lengths would not end at the same tokens\n"
            "set a stride that divides every length"
        )
    starts = np.arange(0, longest - length + stride, stride)
    return Windows(starts, np.where(starts == 0, 0, length - stride), length)


def named(protocol: str, stride: int) -> str:
    """Return the name of a protocol in tables, which includes any stride other than 256."""
    return f"{protocol}-{stride}" if protocol == "sliding" and stride != 256 else protocol
