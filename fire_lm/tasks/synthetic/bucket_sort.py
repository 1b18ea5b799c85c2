"""Bucket Sort (context-sensitive): sort a string over a small alphabet (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task


@dataclasses.dataclass(frozen=True)
class BucketSort(Task):
    """The task of sorting n symbols, which range from 0 to `symbols - 1`, in ascending order."""

    symbols: int = 5
    least = {"symbols": 1}

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
