"""The per-symbol accuracy of answers, which is the score of the benchmark, and its mean."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fire_lm.tasks.synthetic.task import Task


def mean_weights(lengths: Sequence[int]) -> np.ndarray:
    """Return the weights with which accuracies are averaged over lengths, float64 [n].

    `lengths` are in ascending order. The weighted mean is that of all lengths from the first to
    the last, with linear interpolation between those given, so that it estimates the benchmark's
    mean over every length. A mean without weights would depend on how densely short and long
    lengths were chosen.
    """
    every = np.arange(lengths[0], lengths[-1] + 1)
    return np.array([np.interp(every, lengths, scores).mean() for scores in np.eye(len(lengths))])


@dataclasses.dataclass(frozen=True)
class Tally:
    """Counts of answers and their symbols, which can be added across batches.

    Attributes:
      sequences: The number of answers.
      symbols, right: The number of symbols that count, and how many of these are correct.
      symbols_squared, right_squared, product: The sums over answers of symbols^2, right^2 and
        symbols * right, from which the standard error is computed.
    """

    sequences: int = 0
    symbols: int = 0
    right: int = 0
    symbols_squared: int = 0
    right_squared: int = 0
    product: int = 0

    def __add__(self, other: Tally) -> Tally:
        mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
        return Tally(*(a + b for a, b in zip(mine, others, strict=True)))

    @property
    def accuracy(self) -> float:
        """The percentage of counted symbols that are correct."""
        return 100 * self.right / self.symbols

    @property
    def stderr(self) -> float:
        """The standard error, in percent, of `accuracy`, which is a ratio of sums over answers."""
        share = self.right / self.symbols
        squares = self.right_squared - 2 * share * self.product + share**2 * self.symbols_squared
        spread = max(0.0, squares) * self.sequences / max(1, self.sequences - 1)
        return 100 * math.sqrt(spread) / self.symbols


def tally(task: Task, truth: np.ndarray, given: np.ndarray) -> Tally:
    """Return a tally of the answers `given`, compared with `truth`; both are int [B, m]."""
    counts = task.counted(truth)
    right = (truth == given) & counts
    of_answer, right_of_answer = counts.sum(axis=1), right.sum(axis=1)
    return Tally(
        sequences=len(truth),
        symbols=int(of_answer.sum()),
        right=int(right_of_answer.sum()),
        symbols_squared=int(np.sum(of_answer**2)),
        right_squared=int(np.sum(right_of_answer**2)),
        product=int(np.sum(of_answer * right_of_answer)),
    )
