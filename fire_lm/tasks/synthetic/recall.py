"""Multi-query associative recall (Arora et al. 2023, arXiv:2312.04927): recall values by key."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task


@dataclasses.dataclass(frozen=True)
class Recall(Task):
    """The task of recalling the values of requested keys from a list of `length` key-value pairs.

    Keys are distinct and are requested in random order without gaps; in the paper, there are gaps
    between requested keys. Value v is symbol v, and key k is symbol `values + k`.

    Attributes:
      keys, values: The numbers of keys and of values to draw from.
      queries: The maximum number of requested keys; 0 requests all keys.
    """

    keys: int = 512
    values: int = 512
    queries: int = 0
    least = {"keys": 1, "values": 1, "queries": 0}

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
        queried = rng.permutation(length)[: self.answer_length(length)]
        return Sample(np.stack([keys, values], axis=1).ravel(), values[queried], keys[queried])
