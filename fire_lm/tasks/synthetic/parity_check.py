"""Parity Check (regular): decide whether the number of ones is odd.

Sources: arXiv:2207.02098 and arXiv:2305.16843.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits


@dataclasses.dataclass(frozen=True)
class ParityCheck(Task):
    """The task of computing the sum of n bits modulo 2."""

    input_symbols = 2
    answer_symbols = 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = bits(rng, length)
        return Sample(string, np.sum(string, keepdims=True) % 2)
