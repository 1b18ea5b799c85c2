"""Missing Duplicate (context-sensitive): find the bit that one copy lacks (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits

BLANK, FILLER = 2, 3


@dataclasses.dataclass(frozen=True)
class MissingDuplicateString(Task):
    """The task of finding the bit that a blank replaces in one of two copies of a string.

    An input of odd length ends with a filler symbol. The only input of length 1 is a 1, and its
    answer is 1.
    """

    input_symbols = 4
    answer_symbols = 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        if length == 1:
            return Sample(np.ones(1, np.int64), np.ones(1, np.int64))
        half = length // 2
        string = np.full(length, FILLER)
        string[: 2 * half] = np.tile(bits(rng, half), 2)
        place = int(rng.integers(2 * half))
        answer = string[place : place + 1].copy()
        string[place] = BLANK
        return Sample(string, answer)
