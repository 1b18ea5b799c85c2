"""Missing Duplicate (context-sensitive): the bit that one of two copies lacks (2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits

BLANK, FILLER = 2, 3


@dataclasses.dataclass(frozen=True)
class MissingDuplicateString(Task):
    """A string repeated twice, with one bit blank; the answer is that bit.

    An input of odd length ends with a filler. A single symbol is a 1 with the answer 1.
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
