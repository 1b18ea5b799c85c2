"""Bucket Sort (context-sensitive): sorting few symbols (2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task


@dataclasses.dataclass(frozen=True)
class BucketSort(Task):
    """n symbols, each from 0 to `symbols - 1`; the answer is the symbols in ascending order."""

    symbols: int = 5

    @property
    def input_symbols(self) -> int:
        return self.symbols

    @property
    def answer_symbols(self) -> int:
        return self.symbols

    def answer_length(self, length: int) -> int:
        return length

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        string = rng.integers(0, self.symbols, length)
        return Sample(string, np.sort(string))
