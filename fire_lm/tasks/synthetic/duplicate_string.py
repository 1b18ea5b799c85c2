"""Duplicate String (context-sensitive): write a string of bits twice (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits


@dataclasses.dataclass(frozen=True)
class DuplicateString(Task):
    """The task of writing a string of n bits twice."""

    input_symbols = 2
    answer_symbols = 2

    def answer_length(self, length: int) -> int:
        return 2 * length

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = bits(rng, length)
        return Sample(string, np.tile(string, 2))
