"""The uncertainty of functions of means, computed by the jackknife and the bootstrap over units.

A unit is an example, or a group of examples that are scored together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# A function from the means, float64 [..., numbers], to values [..., values].
Combine = Callable[[np.ndarray], np.ndarray]

_RESAMPLES = 1000
_SEED = 0


def jackknife(units: np.ndarray, combine: Combine) -> np.ndarray:
    """Return the standard error of each value, float64 [values], by the jackknife.

    For a value that is itself a mean, this is the sample's standard deviation divided by the square
    root of its size. With fewer than two units, standard errors are NaN.

    Args:
      units: The numbers of each unit, [units, numbers].
      combine: Computes the values from the means over units.
    """
    count = len(units)
    if count < 2:
        return np.full(combine(units[0]).shape, np.nan)
    without_one = combine((units.sum(axis=0) - units) / (count - 1))
    spread = np.square(without_one - without_one.mean(axis=0)).sum(axis=0)
    return np.sqrt(spread * (count - 1) / count)


def interval(units: np.ndarray, combine: Combine) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper bounds of 95 % intervals, float64 [values], by the bootstrap.

    The seed is fixed, so that the same units always yield the same intervals. With fewer than two
    units, the bounds are NaN.

    Args:
      units: The numbers of each unit, [units, numbers].
      combine: Computes the values from the means over units.
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
    """Return the elementwise quotient, or 0 where the denominator is 0."""
    return np.divide(
        numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0
    )
