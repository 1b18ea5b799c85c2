"""Compute Sqrt (context-sensitive): find the integer part of a square root (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fire_lm.tasks.synthetic.binary import low_first, number, positive_bits
from fire_lm.tasks.synthetic.task import Sample, Task


@dataclasses.dataclass(frozen=True)
class ComputeSqrt(Task):
    """The task of computing the square root of a binary number, rounded down.

    The number is between 1 and 2^n - 1, and its root is written with ceil(n / 2) bits. The highest
    bit of both numbers comes first.
    """

    input_symbols = 2
    answer_symbols = 2

    def answer_length(self, length: int) -> int:
        return (length + 1) // 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        drawn = positive_bits(rng, length)
        answer = np.zeros(self.answer_length(length), np.int64)
        root = low_first(math.isqrt(number(drawn)))
        answer[: len(root)] = root
        return Sample(drawn[::-1], answer[::-1])
