"""Binary Multiplication (context-sensitive): multiply two binary numbers (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.binary import END, lone_number, low_first, two_numbers
from fire_lm.tasks.synthetic.task import Sample, Task, terminated


@dataclasses.dataclass(frozen=True)
class BinaryMultiplication(Task):
    """The task of multiplying two binary numbers.

    The input consists of two numbers, separated by a 2. The answer is their product, followed by a
    2 and padded with zeros. The lowest bit of every number comes first. An input of n < 3 symbols
    is a single number, and the product is written as n - 1 zeros.
    """

    input_symbols = 3
    answer_symbols = 3
    terminator = END

    def answer_length(self, length: int) -> int:
        return length

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        if length < 3:
            string, product = lone_number(rng, length), np.zeros(length - 1, np.int64)
        else:
            string, first, second = two_numbers(rng, length)
            product = low_first(first * second)
        return Sample(string, terminated(product, END, length))
