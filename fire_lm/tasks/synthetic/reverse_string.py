"""Reverse String (deterministic context-free): reverse a string of bits (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, bits


@dataclasses.dataclass(frozen=True)
class ReverseString(Task):
    """The task of writing a string of n bits in reverse order."""

    input_symbols = 2
    answer_symbols = 2

    def answer_length(self, length: int) -> int:
        return length

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = bits(rng, length)
        return Sample(string, string[::-1])
