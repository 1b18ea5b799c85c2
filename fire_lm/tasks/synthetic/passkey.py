"""Passkey retrieval (Mohtashami and Jaggi 2023, arXiv:2305.16300): find a number in noise."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from fire_lm.tasks.synthetic.haystack import DIGITS, prompt, random_bytes, symbols_of
from fire_lm.tasks.synthetic.task import Sample, Task

QUESTION = b"What is the pass key? The pass key is "


@dataclasses.dataclass(frozen=True)
class Passkey(Task):
    """The task of finding a pass key that is hidden in a text.

    The text has `length` bytes, states the pass key in one place and asks for it at the end. The
    paper draws the pass key from 1 to 50,000; here, all pass keys have the same number of digits.

    Attributes:
      text: The local file whose text hides the pass key; '' uses noise sentences.
      digits: The number of digits of the pass key, of which the first may be 0.
    """

    text: str = ""
    digits: int = 5
    input_symbols = 256
    paths: ClassVar[dict[str, str]] = {"text": "text"}
    answer_symbols = 10
    least = {"digits": 1}

    def _needle(self, key: bytes) -> bytes:
        return b"The pass key is %s. Remember it. %s is the pass key. " % (key, key)

    @property
    def shortest(self) -> int:
        return len(QUESTION) + len(self._needle(b"0" * self.digits))

    def answer_length(self, length: int) -> int:
        return self.digits

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        key = random_bytes(rng, DIGITS, self.digits)
        text = prompt(rng, self.text, [self._needle(key)], QUESTION, length)
        return Sample(symbols_of(text), symbols_of(key))
