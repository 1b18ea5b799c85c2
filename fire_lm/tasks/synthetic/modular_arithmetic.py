"""Modular Arithmetic (regular): evaluate a bracket-free expression modulo 5 (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task

PLUS, MINUS, TIMES = range(3)  # The symbol of an operator is the modulus plus this number.


@dataclasses.dataclass(frozen=True)
class ModularArithmetic(Task):
    """The task of evaluating an expression without brackets, modulo `modulus`.

    In the expression, digits alternate with the operators + - *, of which * takes precedence. If
    `length` is even, the input has one symbol fewer. The symbols are the digits, then + - * and a
    blank, which the benchmark defines but never uses.
    """

    modulus: int = 5
    least = {"modulus": 1}

    @property
    def input_symbols(self) -> int:
        return self.modulus + 4

    @property
    def answer_symbols(self) -> int:
        return self.modulus

    def input_length(self, length: int) -> int:
        return length - 1 + length % 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        expression = np.empty(self.input_length(length), np.int64)
        digits = rng.integers(0, self.modulus, (len(expression) + 1) // 2)
        operators = rng.integers(PLUS, TIMES + 1, len(expression) // 2)
        expression[::2] = digits
        expression[1::2] = self.modulus + operators
        total, term = 0, int(digits[0])
        for operator, digit in zip(operators.tolist(), digits[1:].tolist(), strict=True):
            if operator == TIMES:
                term = term * digit % self.modulus
            else:
                total += term
                term = digit if operator == PLUS else -digit
        return Sample(expression, np.array([(total + term) % self.modulus]))
