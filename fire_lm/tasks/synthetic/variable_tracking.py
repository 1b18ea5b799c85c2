"""Variable tracking (RULER, arXiv:2404.06654): find all variables that have a given value."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from fire_lm.tasks.synthetic.haystack import CAPITALS, DIGITS, distinct_words, prompt, symbols_of
from fire_lm.tasks.synthetic.task import Sample, Task

_QUESTION = b"The variables that are assigned the value %s are "


@dataclasses.dataclass(frozen=True)
class VariableTracking(Task):
    """The task of finding all variables that have a given value.

    The input is a text of `length` bytes that hides chains of assignments and ends with a question
    about one value. The answer consists of the names of the variables that have this value, in the
    order of their assignments.

    Attributes:
      hops: The number of assignments that follow the first one in a chain; each copies the
        variable of the previous assignment.
      chains: The number of chains; the question is about the value of the first chain.
      text: The local file whose text hides the assignments; '' uses noise sentences.
      letters, digits: The number of letters in a name, and of digits in a value.
    """

    hops: int = 4
    chains: int = 1
    text: str = ""
    letters: int = 5
    digits: int = 5
    input_symbols = 256
    paths: ClassVar[dict[str, str]] = {"text": "text"}
    answer_symbols = 36  # digits and capital letters
    least = {"hops": 0, "chains": 1, "letters": 1, "digits": 1}

    @property
    def shortest(self) -> int:
        first = len(b"VAR  = . ") + self.letters + self.digits
        copy = len(b"VAR  = VAR . ") + 2 * self.letters
        return self.chains * (first + self.hops * copy) + len(_QUESTION % b"") + self.digits

    def answer_length(self, length: int) -> int:
        return (self.hops + 1) * self.letters

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        size = self.hops + 1
        names = distinct_words(rng, self.chains * size, self.letters, CAPITALS)
        values = distinct_words(rng, self.chains, self.digits, DIGITS)
        # Chains are interleaved at random, but the order of the assignments in a chain is kept.
        order = rng.permutation(np.repeat(np.arange(self.chains), size)).tolist()
        done, lines = [0] * self.chains, []
        for chain in order:
            at = chain * size + done[chain]
            source = b"VAR " + names[at - 1] if done[chain] else values[chain]
            lines.append(b"VAR %s = %s. " % (names[at], source))
            done[chain] += 1
        text = prompt(rng, self.text, lines, _QUESTION % values[0], length)
        return Sample(symbols_of(text), symbols_of(b"".join(names[:size])))
