"""Decimal addition with reversed digits and index hints (Zhou et al. 2024, arXiv:2402.09371)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.task import Sample, Task


@dataclasses.dataclass(frozen=True)
class DecimalAddition(Task):
    """The task of adding two decimal numbers of `length` digits.

    The sum is written with one more digit, so its highest digit may be 0. The highest digit of
    an input number is 0 only if it is the only digit. A hint before each digit marks the digit's
    place. The `length + 1` places have consecutive hints; the first hint is random and marks the
    highest place. Symbols are digits, hints and +. Only the digits of an answer count towards the
    accuracy, because hints can be copied.

    Attributes:
      hints: The number of hints to draw from, which must exceed the number of digits; 0 omits
        hints.
      lowest_first: Whether numbers are written from the lowest digit to the highest.
    """

    hints: int = 102
    lowest_first: bool = True

    def __post_init__(self) -> None:
        if self.hints < 0 or self.hints == 1:
            raise UserError(f"DecimalAddition.hints is {self.hints}: it must be 0, or 2 or more")

    @property
    def input_symbols(self) -> int:
        return 11 + self.hints

    @property
    def answer_symbols(self) -> int:
        return 10 + self.hints

    @property
    def longest(self) -> int | None:
        return self.hints - 1 if self.hints else None

    def _width(self, digits: int) -> int:
        return 2 * digits if self.hints else digits

    def input_length(self, length: int) -> int:
        return 2 * self._width(length) + 1

    def answer_length(self, length: int) -> int:
        return self._width(length + 1)

    def counted(self, answer: np.ndarray) -> np.ndarray:
        is_digit = np.arange(answer.shape[-1]) % 2 == 1 if self.hints else True
        return super().counted(answer) & is_digit

    def _written(self, digits: np.ndarray, first_hint: int) -> np.ndarray:
        """Return the symbols of a number, highest digit first; hints count up from `first_hint`."""
        if self.hints:
            digits = np.stack([10 + first_hint + np.arange(len(digits)), digits], axis=1)
        return (digits[::-1] if self.lowest_first else digits).ravel()

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        digits = rng.integers(0, 10, (2, length))
        if length > 1:
            digits[:, 0] = rng.integers(1, 10, 2)
        total = np.append(0, digits.sum(axis=0))
        for place in range(length, 0, -1):  # Python's int reads at most 4,300 decimal digits.
            total[place - 1] += total[place] // 10
            total[place] %= 10
        hint = int(rng.integers(self.hints - length)) if self.hints else 0
        first, second = (self._written(number, hint + 1) for number in digits)
        inputs = np.concatenate([first, [10 + self.hints], second])
        return Sample(inputs, self._written(total, hint))
