"""Means over tokens, with standard errors that treat rows of text as independent samples."""

from __future__ import annotations

import math

import numpy as np


def mean_and_error(nll_R: np.ndarray, tokens_R: np.ndarray) -> tuple[float, float]:
    """Return the mean loss in nats per token, and its standard error.

    All tokens have the same weight in the mean, so the mean is a ratio of two sums over rows. The
    standard error is that of a ratio estimator (Cochran, Sampling Techniques, Eq. 2.46), or 0 if
    there is only one row.

    Args:
      nll_R: The loss of each row in nats, summed over its tokens.
      tokens_R: The number of tokens in each row.
    """
    tokens, rows = int(tokens_R.sum()), len(nll_R)
    mean = float(nll_R.sum() / tokens)
    residual = float(np.square(nll_R - mean * tokens_R).sum())
    stderr = math.sqrt(residual * rows / (rows - 1)) / tokens if rows > 1 else 0.0
    return mean, stderr
