"""Even Pairs (regular): whether the first and the last symbol differ.

Ruoss et al. 2023 (2305.16843), after Deletang et al. 2022 (2207.02098): the number of positions at
which the string changes from 0 to 1 or back is even exactly if it ends as it begins.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits


@dataclasses.dataclass(frozen=True)
class EvenPairs(Task):
    """n bits; the answer is 1 if the first and the last differ, else 0."""

    input_symbols = 2
    answer_symbols = 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = bits(rng, length)
        return Sample(string, string[:1] ^ string[-1:])
