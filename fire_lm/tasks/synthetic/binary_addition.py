"""Binary Addition (context-sensitive): add two binary numbers (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.binary import END, lone_number, low_first, number, two_numbers
from fire_lm.tasks.synthetic.task import Sample, Task, terminated


@dataclasses.dataclass(frozen=True)
class BinaryAddition(Task):
    """The task of adding two binary numbers.

    The input consists of two numbers, separated by a 2. The answer is their sum, followed by a 2
    and padded with zeros. The lowest bit of every number comes first. An input of fewer than three
    symbols is a single number, and the sum is that number.
    """

    input_symbols = 3
    answer_symbols = 3
    terminator = END

    def answer_length(self, length: int) -> int:
        return length + 1

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        if length < 3:
            string = lone_number(rng, length)
            total = number(string)
        else:
            string, first, second = two_numbers(rng, length)
            total = first + second
        return Sample(string, terminated(low_first(total), END, length + 1))
