"""Multi-query associative recall (Arora et al. 2023, 2312.04927): the values of keys."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task


@dataclasses.dataclass(frozen=True)
class Recall(Task):
    """`length` pairs of key and value, then keys; the answer to a key is its value.

    Keys are distinct and asked for in random order, one right after the other (the source leaves
    gaps between them). Value v is symbol v, key k is symbol `values + k`.

    Attributes:
        keys, values: how many there are to draw from.
        queries: how many of the keys are asked for; 0 asks for all of them.
    """

    keys: int = 512
    values: int = 512
    queries: int = 0

    @property
    def input_symbols(self) -> int:
        return self.values + self.keys

    @property
    def answer_symbols(self) -> int:
        return self.values

    @property
    def longest(self) -> int:
        return self.keys

    def input_length(self, length: int) -> int:
        return 2 * length

    def answer_length(self, length: int) -> int:
        return min(self.queries or length, length)

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        keys = self.values + rng.permutation(self.keys)[:length]
        values = rng.integers(0, self.values, length)
        asked = rng.permutation(length)[: self.answer_length(length)]
        return Sample(np.stack([keys, values], axis=1).ravel(), values[asked], keys[asked])
