"""The accuracy of giving the most frequent symbol everywhere, for tasks with default settings.

A model below this accuracy has learned nothing. A model that knows only the length of a BucketSort
exercise scores more; see docs/synthetic.md.
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
# fmt: on


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
    return float(np.interp(length, _LENGTHS[: len(known)], known))
