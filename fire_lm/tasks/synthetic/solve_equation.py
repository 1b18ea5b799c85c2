"""Solve Equation (deterministic context-free): solve an equation modulo 5 (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.modular_arithmetic_brackets import (
    DIGITS,
    OPERATORS,
    bracketed,
    check_modulus,
)
from fire_lm.tasks.synthetic.task import Sample, Task, Variant, encoded


@dataclasses.dataclass(frozen=True)
class SolveEquation(Task):
    """The task of finding the digit that is hidden in an equation, modulo `modulus`.

    The equation states the value of an expression with brackets, in which x hides the digit. An
    input of fewer than three symbols contains no equation; input and answer are then zeros.

    Attributes:
      modulus: The modulus, at most 10.
      variant: 'code' uses only + and -, so that the solution is unique; 'text' also uses *, and
        the answer is the hidden digit, even though it need not be the only solution.
    """

    modulus: int = 5
    variant: Variant = "code"

    def __post_init__(self) -> None:
        check_modulus(self, self.modulus)

    @property
    def input_symbols(self) -> int:
        return self.modulus + (6 if self.variant == "code" else 7)

    @property
    def answer_symbols(self) -> int:
        return self.modulus

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        if length < 3:
            return Sample(np.zeros(length, np.int64), np.zeros(1, np.int64))
        operators = OPERATORS[:2] if self.variant == "code" else OPERATORS
        text, value = bracketed(rng, length - 2, self.modulus, operators)
        # Hide the first digit at or after a random position, continuing at the beginning if there
        # is none. As in the benchmark, a digit after many brackets is thus hidden more often.
        place = int(rng.integers(len(text)))
        while not text[place].isdigit():
            place = (place + 1) % len(text)
        equation = f"{text[:place]}x{text[place + 1 :]}={value}"
        alphabet = DIGITS[: self.modulus] + "+-()x=*"
        return Sample(encoded(equation, alphabet), np.array([int(text[place])]))
