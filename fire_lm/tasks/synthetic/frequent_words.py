"""Frequent words extraction (RULER, arXiv:2404.06654): find the three most frequent words.

The frequencies follow Zipf's law.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.haystack import distinct_words, symbols_of
from fire_lm.tasks.synthetic.task import Sample, Task

_QUESTION = b"The three most frequent words are "
ASKED = 3
_FEWEST = (
    48  # With RULER's exponent, the four most frequent of this many words differ in frequency.
)


@dataclasses.dataclass(frozen=True)
class FrequentWords(Task):
    """The task of finding the three most frequent words in a list.

    The input consists of words in random order and a question, in at most `length` bytes. In a list
    of N words, the k-th most frequent word occurs floor(N k^-exponent / Z) times, where Z is the
    sum of k^-exponent for k up to N. Words that occur once complete the list. RULER adds the word
    '...', which is the most frequent but is not part of the answer; this task does not.

    Attributes:
        exponent: The exponent of Zipf's law.
        letters: The number of letters in a word.
    """

    exponent: float = 2.0
    letters: int = 6
    input_symbols = 256
    answer_symbols = 62  # digits and letters

    @property
    def shortest(self) -> int:
        return _FEWEST * (self.letters + 1) + len(_QUESTION)

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
        shares = np.arange(1, words + 1) ** -self.exponent
        counts = np.floor(words * shares / shares.sum()).astype(np.int64)
        counts = counts[counts > 0]
        return np.append(counts, np.ones(words - counts.sum(), np.int64))

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        counts = self.counts(self._words(length))
        words = distinct_words(rng, len(counts), self.letters)
        order = rng.permutation(np.repeat(np.arange(len(counts)), counts)).tolist()
        text = b"".join(words[word] + b" " for word in order) + _QUESTION
        return Sample(symbols_of(text), symbols_of(b"".join(words[:ASKED])))
