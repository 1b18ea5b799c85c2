"""Odds First (context-sensitive): every other symbol, then the rest (2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, Variant, bits


@dataclasses.dataclass(frozen=True)
class OddsFirst(Task):
    """The symbols at one kind of places, then those at the other.

    Attributes:
        variant: with places counted from 1, 'code' gives the 2nd, 4th, ... and then the 1st, 3rd,
            ..., against its own description; 'text' gives the odd places first, as named.
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
