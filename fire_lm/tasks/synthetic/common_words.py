"""Common words extraction (RULER, arXiv:2404.06654): find the words that occur most often."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.haystack import distinct_words, symbols_of
from fire_lm.tasks.synthetic.task import Sample, Task

_QUESTION = b"The most common words are "


@dataclasses.dataclass(frozen=True)
class CommonWords(Task):
    """The task of finding the common words in a list.

    The input consists of the list and a question, in at most `length` bytes. The list contains as
    many uncommon words as fit. The answer consists of the common words in the order of their first
    occurrence. Words are random letters.

    Attributes:
      common: The number of common words.
      times, other_times: The number of occurrences of each common word and of each uncommon word;
        the first must be larger.
      letters: The number of letters in a word.
    """

    common: int = 10
    times: int = 30
    other_times: int = 3
    letters: int = 5
    input_symbols = 256
    answer_symbols = 62  # digits and letters
    least = {"common": 1, "letters": 1}

    def __post_init__(self) -> None:
        if not self.times > self.other_times >= 1:
            raise UserError(
                f"CommonWords.times is {self.times} and other_times is {self.other_times}: times "
                "must exceed other_times, which must be 1 or more"
            )

    @property
    def shortest(self) -> int:
        occurrences = self.common * self.times + self.other_times
        return occurrences * (self.letters + 1) + len(_QUESTION)

    def _others(self, length: int) -> int:
        room = (length - len(_QUESTION)) // (self.letters + 1) - self.common * self.times
        return room // self.other_times

    def input_length(self, length: int) -> int:
        occurrences = self.common * self.times + self._others(length) * self.other_times
        return occurrences * (self.letters + 1) + len(_QUESTION)

    def answer_length(self, length: int) -> int:
        return self.common * self.letters

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        others = self._others(length)
        words = distinct_words(rng, self.common + others, self.letters)
        counts = [self.times] * self.common + [self.other_times] * others
        order = rng.permutation(np.repeat(np.arange(len(words)), counts)).tolist()
        text = b"".join(words[word] + b" " for word in order) + _QUESTION
        answer = [word for word in dict.fromkeys(order) if word < self.common]
        return Sample(symbols_of(text), symbols_of(b"".join(words[word] for word in answer)))
