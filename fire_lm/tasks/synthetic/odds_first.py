"""Odds First (context-sensitive): repeat every other symbol, then the rest (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, Variant, bits


@dataclasses.dataclass(frozen=True)
class OddsFirst(Task):
    """The task of writing every other bit of a string of n bits, and then the remaining bits.

    Attributes:
      variant: With positions counted from 1, 'code' puts the 2nd, 4th, ... bits before the 1st,
        3rd, ..., as the benchmark's code does, contrary to its own description. 'text' puts the
        odd positions first, as the name of the task suggests.
    """

    variant: Variant = "code"
    input_symbols = 2
    answer_symbols = 2

    def answer_length(self, length: int) -> int:
        return length

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = bits(rng, length)
        halves = [string[1::2], string[::2]]
        return Sample(string, np.concatenate(halves if self.variant == "code" else halves[::-1]))
