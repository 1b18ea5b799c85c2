"""The per-symbol accuracy of answers, the benchmark's score, and that of a single symbol."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fire_lm.tasks.synthetic.task import Task

# The accuracy, in percent, of giving the most frequent symbol everywhere, at length 40 or, if all
# exercises of a task are longer, at the task's shortest length. Values that do not follow from the
# task's rule were measured on 20,000 exercises. A model below this accuracy has learned nothing.
# A model that knows only the length of a BucketSort exercise scores more; see docs/synthetic.md.
MOST_FREQUENT = {
    "EvenPairs": 50.0,
    "ParityCheck": 50.0,
    "CycleNavigation": 20.0,
    "ModularArithmetic": 20.3,
    "ModularArithmeticBrackets": 28.9,
    "ReverseString": 50.0,
    "SolveEquation": 20.4,
    "StackManipulation": 48.2,
    "BinaryAddition": 49.8,
    "BinaryMultiplication": 48.9,
    "ComputeSqrt": 52.5,
    "DuplicateString": 50.0,
    "MissingDuplicateString": 50.0,
    "OddsFirst": 50.0,
    "BucketSort": 20.0,
    "DecimalAddition": 11.2,
    "Recall": 0.2,
    "FlipFlop": 50.0,
    "Passkey": 10.0,
    "Needles": 10.0,
    "VariableTracking": 3.8,
    "CommonWords": 3.8,
    "FrequentWords": 3.8,
}


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
