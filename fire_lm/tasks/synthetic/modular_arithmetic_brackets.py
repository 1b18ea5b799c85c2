"""Modular Arithmetic with brackets (deterministic context-free).

The task is to evaluate an expression with brackets modulo 5 (arXiv:2207.02098).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, encoded

OPERATORS = "+-*"


def bracketed(
    rng: np.random.Generator, length: int, modulus: int, operators: str
) -> tuple[str, int]:
    """Return a random expression of `length` characters and its value modulo `modulus`.

    An expression of up to four characters is d, -d, (d) or (-d), where d is a digit. A longer
    expression is (L op R), where L and R are expressions and the length of L is uniform from 1 to
    length - 4. The modulus is at most 10, so that every number below the modulus has one digit.
    """
    if length < 5:
        digit = int(rng.integers(modulus))
        written = ("", "{}", "-{}", "({})", "(-{})")[length].format(digit)
        return written, digit if length % 2 else -digit % modulus
    left_length = int(rng.integers(1, length - 3))
    left, a = bracketed(rng, left_length, modulus, operators)
    right, b = bracketed(rng, length - 3 - left_length, modulus, operators)
    operator = operators[int(rng.integers(len(operators)))]
    value = a + b if operator == "+" else a - b if operator == "-" else a * b
    return f"({left}{operator}{right})", value % modulus


def digits_of(modulus: int) -> str:
    """Return the digits below the modulus as a string."""
    return "0123456789"[:modulus]


@dataclasses.dataclass(frozen=True)
class ModularArithmeticBrackets(Task):
    """The task of evaluating an expression with brackets, modulo `modulus`.

    The symbols are the digits, then + - * ( ) and an x, which never occurs in this task.

    Attributes:
      modulus: The modulus, at most 10.
      multiply: Whether * occurs, as it does in the benchmark's code.
    """

    modulus: int = 5
    multiply: bool = True

    @property
    def input_symbols(self) -> int:
        return self.modulus + 6

    @property
    def answer_symbols(self) -> int:
        return self.modulus

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        operators = OPERATORS if self.multiply else OPERATORS[:2]
        text, value = bracketed(rng, length, self.modulus, operators)
        return Sample(encoded(text, digits_of(self.modulus) + "+-*()x"), np.array([value]))
