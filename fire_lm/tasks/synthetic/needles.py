"""Needle retrieval as in RULER (Hsieh et al. 2024, arXiv:2404.06654): find numbers by word."""

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
    """The task of finding the numbers that hidden sentences assign to words.

    The input is a text of `length` bytes that hides the sentences and ends with a question about
    some of the words. The answer consists of the numbers of the first requested word, in the order
    of the text, then those of the next word, and so on. Words are random letters. RULER's single,
    multi-key, multi-value and multi-query needles are (keys, values, queries) = (1, 1, 1),
    (4, 1, 1), (1, 4, 1) and (4, 1, 4).

    Attributes:
        keys: The number of words that have numbers.
        values: How many numbers each word has.
        queries: The number of requested words.
        text: The local file whose text hides the sentences; '' uses noise sentences.
        digits, letters: The number of digits in a number, and of letters in a word.
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
                f"Needles has keys = {self.keys}, values = {self.values} and queries = "
                f"{self.queries}: queries must be from 1 to keys, and values must be 1 or more"
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
