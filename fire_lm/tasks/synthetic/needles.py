"""Needle retrieval in RULER's forms (Hsieh et al. 2024, 2404.06654): numbers of words."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.haystack import (
    DIGITS,
    distinct_words,
    prompt,
    random_bytes,
    symbols_of,
)
from fire_lm.tasks.synthetic.task import Sample, Task

_NEEDLE = b"One of the special magic numbers for %s is: %s. "
_QUESTION = b"What are the special magic numbers for %s? They are "


@dataclasses.dataclass(frozen=True)
class Needles(Task):
    """`length` bytes of text with sentences that give a number to a word; some are asked for.

    RULER's single, multi-key, multi-value and multi-query needles are (keys, values, queries) =
    (1, 1, 1), (4, 1, 1), (1, 4, 1) and (4, 1, 4). The answer has the numbers of the first word
    asked for in the order of the text, then those of the next. Words are random letters.

    Attributes:
        keys: words that have numbers.
        values: numbers of each word.
        queries: words asked for.
        text: a local file to hide them in; '' takes noise sentences.
        digits, letters: of a number, of a word.
    """

    keys: int = 1
    values: int = 1
    queries: int = 1
    text: str = ""
    digits: int = 7
    letters: int = 6
    input_symbols = 256
    answer_symbols = 10

    def __post_init__(self) -> None:
        if not 1 <= self.queries <= self.keys or self.values < 1:
            raise UserError(
                f"Needles: {self.queries} queries of {self.keys} keys with {self.values} values "
                "cannot be: queries are from 1 to keys, values 1 or more"
            )

    @property
    def shortest(self) -> int:
        needle = len(_NEEDLE % (b"", b"")) + self.letters + self.digits
        words = self.queries * self.letters + (self.queries - 1) * len(b", ")
        return self.keys * self.values * needle + len(_QUESTION % b"") + words

    def answer_length(self, length: int) -> int:
        return self.queries * self.values * self.digits

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        words = distinct_words(rng, self.keys, self.letters)
        owners = rng.permutation(np.repeat(np.arange(self.keys), self.values))
        numbers = [random_bytes(rng, DIGITS, self.digits) for _ in owners]
        needles = [_NEEDLE % (words[key], n) for key, n in zip(owners, numbers, strict=True)]
        question = _QUESTION % b", ".join(words[: self.queries])
        asked = prompt(rng, self.text, needles, question, length)
        found = [numbers[i] for key in range(self.queries) for i in np.flatnonzero(owners == key)]
        return Sample(symbols_of(asked), symbols_of(b"".join(found)))
