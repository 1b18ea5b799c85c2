"""Loss as a function of a token's position in its sequence, in bins of equal width.

The losses come from the forward pass of the length sweep.

Shape suffixes: R = rows of text, P = bins of positions.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from fire_lm.data import ScoringText
from fire_lm.measures.protocols import Windows
from fire_lm.results import PositionLoss
from fire_lm.results.estimators import mean_and_error


def number_of_bins(length: int, most: int) -> int:
    """Return the largest number of bins, up to `most`, that divides the length."""
    return max(bins for bins in range(1, min(most, length) + 1) if length % bins == 0)


def tokens_in_bins(text: ScoringText, laid: Windows, bins: int) -> np.ndarray:
    """Return the number of scored tokens in each row of text and each bin, `[R, P]`.

    Positions are counted from the start of the window or, in packed rows, from the start of the
    document's part in the window.
    """
    weights = laid.of(text.weights)
    place = np.broadcast_to(np.arange(laid.length), weights.shape)
    if text.segment_ids is not None:
        segments = laid.of(text.segment_ids)
        starts = np.diff(segments, axis=1, prepend=-1) != 0
        place = place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)
    row = np.repeat(np.arange(len(text.targets)), weights.size // len(text.targets))
    flat = row * bins + place.ravel() // (laid.length // bins)
    scored = weights.ravel() != 0
    counts = np.bincount(flat[scored], minlength=len(text.targets) * bins)
    return counts.reshape(-1, bins)


def position_losses(
    place: tuple[Any, ...], nll_RP: np.ndarray, tokens_RP: np.ndarray
) -> list[PositionLoss]:
    """Return a row for each bin that contains scored tokens.

    Args:
      place: The key of the rows, which ends with the length.
      nll_RP: The summed nats of the tokens in each row of text and bin.
      tokens_RP: The number of scored tokens in each row of text and bin.
    """
    width = place[-1] // nll_RP.shape[1]
    rows = []
    for first, nll_R, tokens_R in zip(
        itertools.count(0, width), nll_RP.T, tokens_RP.T, strict=False
    ):
        if tokens := int(tokens_R.sum()):
            inside = (first, first + width - 1, tokens)
            fields: tuple[Any, ...] = (*place, *inside, *mean_and_error(nll_R, tokens_R))
            rows.append(PositionLoss(*fields))
    return rows
