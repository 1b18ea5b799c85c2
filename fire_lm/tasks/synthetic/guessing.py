"""The accuracy of answers that do not depend on an exercise's symbols, for default settings.

The simplest such answer is the task's most frequent symbol everywhere; the best one is the most
frequent symbol of each place of an answer to an exercise of each length. A model that does not
exceed it has learned nothing about the exercises.
"""

from __future__ import annotations

import numpy as np

# Accuracies in percent. Those that do not follow from the rule of a task were measured on 4,500 to
# 20,000 exercises (1,500 beyond length 101). If an accuracy depends on the length, it is given at
# `_LENGTHS`. In ComputeSqrt, it alternates between even and odd lengths.
# fmt: off
_LENGTHS = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 21, 30, 31, 40, 41, 60, 61, 100,
    101, 200, 500,
)
MOST_FREQUENT: dict[str, float | tuple[float, ...]] = {
    "EvenPairs": 50.0,
    "ParityCheck": 50.0,
    "CycleNavigation": 20.0,
    "ModularArithmetic": 20.3,
    "ModularArithmeticBrackets": (
        20.4, 20.3, 20.0, 19.7, 24.8, 25.1, 25.2, 25.3, 26.2, 26.1, 26.6, 27.0, 26.9, 27.5,
        27.6, 26.8, 28.6, 28.5, 28.7, 28.5, 29.5, 28.9, 30.4, 29.8, 30.7, 30.3,
    ),
    "ReverseString": 50.0,
    "SolveEquation": 20.4,
    "StackManipulation": (
        50.0, 43.0, 33.5, 36.3, 38.7, 40.2, 41.4, 42.2, 42.9, 43.5, 43.9, 44.3, 44.8, 45.5,
        45.5, 45.6, 46.7, 46.4, 47.6, 47.7, 48.3, 48.2, 49.0, 48.8, 49.3, 49.4, 49.7, 49.7,
    ),
    "BinaryAddition": (
        50.0, 42.8, 33.3, 39.9, 43.9, 45.6, 47.0, 47.4, 48.3, 48.4, 49.0, 49.0, 49.5, 49.4,
        49.3, 49.5, 49.7, 49.7, 50.0, 50.0, 50.0, 50.0, 49.8, 50.1, 50.0, 50.0, 50.0, 49.7,
    ),
    "BinaryMultiplication": (
        100.0, 50.0, 50.0, 50.1, 48.5, 47.9, 47.3, 46.9, 46.9, 46.8, 46.6, 46.8, 46.9, 46.8,
        46.8, 46.9, 47.5, 47.4, 48.4, 48.4, 49.0, 49.1, 49.3, 49.2, 49.6, 49.7, 50.0, 49.9,
    ),
    "ComputeSqrt": (
        100.0, 100.0, 50.0, 73.9, 51.9, 65.4, 52.2, 62.1, 52.1, 59.8, 52.0, 58.3, 51.8, 57.2,
        51.7, 56.3, 54.9, 51.0, 53.4, 50.9, 52.4, 50.4, 51.5, 50.3, 50.8, 50.4, 50.7, 50.0,
    ),
    "DuplicateString": 50.0,
    "MissingDuplicateString": 50.0,
    "OddsFirst": 50.0,
    "BucketSort": 20.0,
    "DecimalAddition": (
        32.5, 26.1, 22.6, 20.0, 18.6, 17.2, 16.5, 15.6, 15.1, 14.6, 14.2, 13.7, 13.5, 13.3,
        13.2, 12.9, 12.4, 12.3, 11.7, 11.6, 11.2, 11.2, 10.8, 10.9, 10.5, 10.6,
    ),
    "Recall": 0.2,
    "FlipFlop": 50.0,
    "Passkey": 10.0,
    "Needles": 10.0,
    "VariableTracking": 3.8,
    "CommonWords": 3.8,
    "FrequentWords": 3.8,
}
# The accuracies of the most frequent symbol of each place, at `_LENGTHS`, for tasks in which it
# scores more (BucketSort: see below). Symbols were determined on 400 to 4,000 exercises and scored
# on as many others.
BY_PLACE: dict[str, tuple[float, ...]] = {
    "CycleNavigation": (32.6, 32.9, 24.9, 23.9, 21.7, 20.9, 20.0),
    "SolveEquation": (100.0, 100.0, 20.4),
    "StackManipulation": (
        74.8, 57.0, 55.8, 54.0, 52.5, 50.7, 50.9, 49.3, 49.3, 48.4, 48.4, 48.3, 48.3, 48.2,
        48.4, 48.2, 48.2, 48.0, 48.2, 48.1, 48.8, 48.7, 48.9, 49.0, 49.3, 49.2, 49.8, 50.0,
    ),
    "BinaryAddition": (
        100.0, 71.7, 100.0, 70.2, 63.3, 55.8, 55.7, 54.6, 52.7, 51.9, 51.2, 50.7, 50.4, 50.9,
        50.2, 50.2, 50.3, 50.5, 50.3, 50.4, 49.9, 50.1, 50.3, 49.9, 49.7, 49.8, 49.7, 49.9,
    ),
    "BinaryMultiplication": (
        100.0, 100.0, 100.0, 74.7, 62.8, 60.0, 58.4, 56.3, 56.0, 55.4, 55.3, 54.3, 54.0, 54.1,
        54.3, 53.7, 53.3, 52.5, 51.8, 51.8, 51.3, 51.4, 50.8, 50.8, 50.4, 50.6, 50.3, 50.3,
    ),
    "ComputeSqrt": (
        100.0, 100.0, 56.6, 73.5, 56.2, 65.4, 54.3, 61.6, 53.4, 59.9, 52.9, 58.1, 52.7, 56.7,
        52.9, 56.2, 54.9, 51.5, 53.1, 51.2, 52.6, 50.9, 51.6, 50.3, 51.2, 50.2, 50.6, 50.4,
    ),
}
# fmt: on


def without_reading(task: str, length: int) -> float:
    """Return the accuracy, in percent, of the best answer that depends on length and place alone.

    Args:
      task: A key of `MOST_FREQUENT`.
    """
    if task == "BucketSort":
        return _sorted_by_length(length)
    by_place = BY_PLACE.get(task)
    known = most_frequent(task, length)
    return known if by_place is None else max(known, _interpolated(by_place, length))


def _sorted_by_length(length: int) -> float:
    """Return the accuracy of giving each place of a sorted string its most probable symbol.

    A place holds a symbol if at most as many symbols as precede the place are smaller, and more are
    not larger; both numbers are binomial.
    """
    from scipy.special import bdtr

    places, shares = np.arange(length), np.arange(6)[:, None] / 5
    at_most = bdtr(places, length, shares)  # the probability that no more symbols are smaller
    return float(100 * (at_most[:-1] - at_most[1:]).max(axis=0).mean())


def most_frequent(task: str, length: int) -> float:
    """Return the accuracy, in percent, of always giving the most frequent symbol of a task.

    Between the lengths of the table, the accuracy is interpolated linearly; beyond the last one, it
    is that of the last one.

    Args:
      task: A key of `MOST_FREQUENT`.
    """
    known = MOST_FREQUENT[task]
    if isinstance(known, float):
        return known
    return _interpolated(known, length)


def _interpolated(known: tuple[float, ...], length: int) -> float:
    return float(np.interp(length, _LENGTHS[: len(known)], known))
