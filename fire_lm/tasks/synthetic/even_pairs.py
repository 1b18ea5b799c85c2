"""Even Pairs (regular): decide whether the first and the last symbol differ.

The task is that of Ruoss et al. 2023 (arXiv:2305.16843), after Deletang et al. 2022
(arXiv:2207.02098). The number of positions at which the string changes from 0 to 1 or from 1 to 0
is even if and only if the first and the last symbol are the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits


@dataclasses.dataclass(frozen=True)
class EvenPairs(Task):
    """The task of deciding whether the first and the last of n bits differ (1) or not (0)."""

    input_symbols = 2
    answer_symbols = 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = bits(rng, length)
        return Sample(string, string[:1] ^ string[-1:])
