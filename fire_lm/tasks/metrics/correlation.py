"""Correlations between predicted and true numbers, for STS-B."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fire_lm.tasks.metrics.answers import no_references
from fire_lm.tasks.metrics.metric import Metric
from fire_lm.tasks.metrics.uncertainty import ratio


class Correlations(Metric):
    """Pearson's and Spearman's correlations in percent; 0 if targets or predictions are constant.

    A target that is NaN is unknown, so the examples cannot be scored. The ranks are treated as
    fixed when the uncertainty of Spearman's correlation is computed.
    """

    names = ("pearson", "spearman")

    def units(self, targets: Sequence[float], predictions: Sequence[float]) -> np.ndarray:
        if np.isnan(targets).any():
            raise no_references()
        pairs = np.stack([np.asarray(targets, float), np.asarray(predictions, float)], axis=1)
        ranks = np.stack([ranked(pairs[:, 0]), ranked(pairs[:, 1])], axis=1)
        return np.concatenate([_moments(pairs), _moments(ranks)], axis=1)

    def combine(self, means: np.ndarray) -> np.ndarray:
        return np.stack([_correlation(half) for half in np.split(means, 2, axis=-1)], axis=-1)


def ranked(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value in ascending order, float64 [n]; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _moments(pairs: np.ndarray) -> np.ndarray:
    """Return x, y, x^2, y^2 and x y, [n, 5], after subtracting the means of x and y."""
    x, y = np.moveaxis(pairs - pairs.mean(axis=0), -1, 0)
    return np.stack([x, y, x * x, y * y, x * y], axis=-1)


def _correlation(means: np.ndarray) -> np.ndarray:
    x, y, xx, yy, xy = np.moveaxis(means, -1, 0)
    spread = np.maximum(xx - x * x, 0) * np.maximum(yy - y * y, 0)
    return ratio(xy - x * y, np.sqrt(spread))
