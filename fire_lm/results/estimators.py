"""Means over tokens, with standard errors over rows of text, which are the independent units."""

from __future__ import annotations

import math

import numpy as np


def mean_and_error(nll_R: np.ndarray, tokens_R: np.ndarray) -> tuple[float, float]:
    """Return nats per token and their standard error, from each row's summed nats and tokens.

    The mean weights tokens equally, so it is a ratio of two sums over rows; the error is that of a
    ratio estimator (Cochran, Sampling Techniques, Eq. 2.46), and 0 for a single row.
    """
    tokens, rows = int(tokens_R.sum()), len(nll_R)
    mean = float(nll_R.sum() / tokens)
    residual = float(np.square(nll_R - mean * tokens_R).sum())
    stderr = math.sqrt(residual * rows / (rows - 1)) / tokens if rows > 1 else 0.0
    return mean, stderr
