"""The accuracy of answers that do not depend on an exercise's symbols, for default settings.

The simplest such answer is the task's most frequent symbol everywhere; the best one is the most
frequent symbol of each place of an answer to an exercise of each length. A model that does not
exceed it has learned nothing about the exercises.

`guessing.csv` has these accuracies in percent, at the lengths of its first line; a line that ends
earlier has the same accuracy at all greater lengths. Those of the most frequent symbol that do not
follow from the rule of a task were measured on 4,500 to 20,000 exercises (1,500 beyond length 101).
Those of the most frequent symbol of each place are listed for tasks in which it scores more
(BucketSort: see below); its symbols were determined on 400 to 4,000 exercises and scored on as many
others. In ComputeSqrt, the accuracy alternates between even and odd lengths.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    (_, _, *_lengths), *_lines = csv.reader(_file)
_LENGTHS = tuple(map(int, _lengths))
MOST_FREQUENT, BY_PLACE = (
    {task: tuple(map(float, known)) for symbol, task, *known in _lines if symbol == kind}
    for kind in ("most frequent", "most frequent of the place")
)


def without_reading(task: str, length: int) -> float:
    """Return the accuracy, in percent, of the best answer that depends on length and place alone.

    Args:
      task: A key of `MOST_FREQUENT`.
    """
    if task == "BucketSort":
        return _sorted_by_length(length)
    tables = (table for table in (MOST_FREQUENT, BY_PLACE) if task in table)
    return max(interpolated(table[task], length) for table in tables)


def _sorted_by_length(length: int) -> float:
    """Return the accuracy of giving each place of a sorted string its most probable symbol.

    A place holds a symbol if at most as many symbols as precede the place are smaller, and more are
    not larger; both numbers are binomial.
    """
    from scipy.special import bdtr

    places, shares = np.arange(length), np.arange(6)[:, None] / 5
    at_most = bdtr(places, length, shares)  # the probability that no more symbols are smaller
    return float(100 * (at_most[:-1] - at_most[1:]).max(axis=0).mean())


def interpolated(known: tuple[float, ...], length: int) -> float:
    """Return the accuracy at a length from those at the table's lengths.

    Between these, it is interpolated linearly; beyond the last one, it is that of the last one.
    """
    return float(np.interp(length, _LENGTHS[: len(known)], known))
