"""The uncertainty of a function of means: the jackknife and the bootstrap over units."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# float64 [..., numbers] -> [..., values]
Combine = Callable[[np.ndarray], np.ndarray]

_RESAMPLES = 1000
_SEED = 0


def jackknife(units: np.ndarray, combine: Combine) -> np.ndarray:
    """Return standard errors, float64 [values], of `combine` of the means of [units, numbers].

    For a mean, this is the sample's standard deviation over the root of its size; NaN for one unit.
    """
    count = len(units)
    if count < 2:
        return np.full(combine(units[0]).shape, np.nan)
    without_one = combine((units.sum(axis=0) - units) / (count - 1))
    spread = np.square(without_one - without_one.mean(axis=0)).sum(axis=0)
    return np.sqrt(spread * (count - 1) / count)


def interval(units: np.ndarray, combine: Combine) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of 95 % intervals, float64 [values] each, from resamples of the units.

    The seed is fixed, so that the same units give the same interval.
    """
    count = len(units)
    if count < 2:
        unknown = np.full(combine(units[0]).shape, np.nan)
        return unknown, unknown
    rng = np.random.default_rng(_SEED)
    means = np.empty((_RESAMPLES, units.shape[1]))
    for row in means:
        drawn = np.bincount(rng.integers(0, count, count), minlength=count)
        row[:] = drawn @ units / count
    low, high = np.percentile(combine(means), [2.5, 97.5], axis=0)
    return low, high


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, or 0 where the denominator is 0."""
    return np.divide(
        numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0
    )
