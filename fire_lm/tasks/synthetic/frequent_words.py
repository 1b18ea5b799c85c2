"""Frequent words extraction (RULER, arXiv:2404.06654): find the three most frequent words.

The frequencies follow Zipf's law.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.haystack import distinct_words, symbols_of
from fire_lm.tasks.synthetic.task import Sample, Task

_QUESTION = b"The three most frequent words are "
ASKED = 3
_FEWEST = 48  # Lists have at least this many words, and more if the exponent requires them.
_MOST = 2**16


@dataclasses.dataclass(frozen=True)
class FrequentWords(Task):
    """The task of finding the three most frequent words in a list.

    The input consists of words in random order and a question, in at most `length` bytes. In a list
    of N words, the k-th most frequent word occurs floor(N k^-exponent / Z) times, where Z is the
    sum of k^-exponent for k up to N. Words that occur once complete the list. RULER adds the word
    '...', which is the most frequent but is not part of the answer; this task does not.

    Attributes:
      exponent: The exponent of Zipf's law. Lists are long enough for the four most frequent words
        to differ in frequency.
      letters: The number of letters in a word.
    """

    exponent: float = 2.0
    letters: int = 6
    input_symbols = 256
    answer_symbols = 62  # digits and letters
    least = {"letters": 1}

    def __post_init__(self) -> None:
        fewest_words(self.exponent)

    @property
    def shortest(self) -> int:
        return fewest_words(self.exponent) * (self.letters + 1) + len(_QUESTION)

    def _words(self, length: int) -> int:
        return (length - len(_QUESTION)) // (self.letters + 1)

    def input_length(self, length: int) -> int:
        return self._words(length) * (self.letters + 1) + len(_QUESTION)

    def answer_length(self, length: int) -> int:
        return ASKED * self.letters

    def counts(self, words: int) -> np.ndarray:
        """Return the count of each distinct word, int [k], in descending order.

        The sum of the counts is `words`.
        """
        shares = np.arange(1, words + 1) ** -float(self.exponent)
        counts = np.floor(words * shares / shares.sum()).astype(np.int64)
        counts = counts[counts > 0]
        return np.append(counts, np.ones(words - counts.sum(), np.int64))

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        counts = self.counts(self._words(length))
        words = distinct_words(rng, len(counts), self.letters)
        order = rng.permutation(np.repeat(np.arange(len(counts)), counts)).tolist()
        text = b"".join(words[word] + b" " for word in order) + _QUESTION
        return Sample(symbols_of(text), symbols_of(b"".join(words[:ASKED])))


@functools.lru_cache(maxsize=8)
def fewest_words(exponent: float) -> int:
    """Return the smallest number of words in a list.

    The third and the fourth word differ in frequency, also if the fourth occurs once because it
    completes the list: before rounding down, their counts differ by 1 or more. So do those of the
    words before them.

    Raises:
      UserError: The words differ only in lists that are too long.
    """
    words = np.arange(1, _MOST + 1)
    shares = words ** -float(exponent)
    third, fourth = (words * share / np.cumsum(shares) for share in shares[ASKED - 1 : ASKED + 1])
    apart = third >= np.maximum(fourth, 1) + 1
    if not apart.any():
        raise UserError(
            f"FrequentWords.exponent is {exponent}: the most frequent words of a list would be "
            "ambiguous; use an exponent from 0.5 to 8"
        )
    return max(_FEWEST, int(np.argmax(apart)) + 1)
