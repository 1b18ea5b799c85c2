"""Cycle Navigation (regular): find the end of a walk on a circle (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, Variant

# The moves that the symbols 0, 1 and 2 represent, in the benchmark's code and in the paper's text.
MOVES: dict[Variant, tuple[int, int, int]] = {"code": (-1, 0, 1), "text": (0, 1, -1)}


@dataclasses.dataclass(frozen=True)
class CycleNavigation(Task):
    """The task of finding the final position after n moves on a circle.

    The walk starts at position 0, so the answer is the sum of the moves modulo `places`.

    Attributes:
      places: The number of positions on the circle.
      variant: The assignment of the moves to symbols, 'code' or 'text'; see `MOVES`.
    """

    places: int = 5
    variant: Variant = "code"
    input_symbols = 3
    least = {"places": 1}

    @property
    def answer_symbols(self) -> int:
        return self.places

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = rng.integers(0, 3, length)
        moves = np.array(MOVES[self.variant])[string]
        return Sample(string, np.sum(moves, keepdims=True) % self.places)
