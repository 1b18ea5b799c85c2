"""Modular Arithmetic with brackets (deterministic context-free).

The task is to evaluate an expression with brackets modulo 5 (arXiv:2207.02098).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.task import Sample, Task, encoded

DIGITS, OPERATORS = "0123456789", "+-*"


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


def check_modulus(task: Task, modulus: int) -> None:
    """Raise UserError if a number below the modulus of a task has more than one digit."""
    if not 1 <= modulus <= 10:
        raise UserError(f"{type(task).__name__}.modulus is {modulus}: it must be from 1 to 10")


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

    def __post_init__(self) -> None:
        check_modulus(self, self.modulus)

    @property
    def input_symbols(self) -> int:
        return self.modulus + 6

    @property
    def answer_symbols(self) -> int:
        return self.modulus

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        operators = OPERATORS if self.multiply else OPERATORS[:2]
        text, value = bracketed(rng, length, self.modulus, operators)
        return Sample(encoded(text, DIGITS[: self.modulus] + "+-*()x"), np.array([value]))
