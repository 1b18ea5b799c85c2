"""The interface of synthetic tasks: a rule that makes an input and its answer."""

from __future__ import annotations

import abc
import dataclasses
from typing import Literal

import numpy as np

from fire_lm.errors import UserError

# A task has a field of this type where a benchmark's code and its text differ.
Variant = Literal["code", "text"]


@dataclasses.dataclass(frozen=True)
class Sample:
    """An exercise in symbols.

    Attributes:
        inputs: The input, int [n], each from 0 to `Task.input_symbols - 1`.
        answer: The answer, int [m], each from 0 to `Task.answer_symbols - 1`.
        queries: Input symbols that each ask for one answer symbol, int [m], or None if the whole
            input asks.
    """

    inputs: np.ndarray
    answer: np.ndarray
    queries: np.ndarray | None = None


class Task(abc.ABC):
    """A rule that makes exercises; each task is a frozen dataclass in its own file.

    A symbol that occurs in both inputs and answers has the same number in both. Properties that do
    not depend on a field are plain class attributes of the task: `input_symbols = 2`.
    """

    @property
    def label(self) -> str:
        """The task's name in tables: the class, with the fields that differ from their defaults."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return type(self).__name__ + f"({', '.join(changed)})" * bool(changed)

    @property
    @abc.abstractmethod
    def input_symbols(self) -> int:
        """The number of symbols that inputs can contain."""

    @property
    @abc.abstractmethod
    def answer_symbols(self) -> int:
        """The number of symbols that answers can contain."""

    @property
    def terminator(self) -> int | None:
        """The answer symbol that ends the counted part of an answer, or None."""
        return None

    @property
    def shortest(self) -> int:
        """The smallest length for which the rule is defined."""
        return 1

    @property
    def longest(self) -> int | None:
        """The largest length for which the rule is defined, or None if there is none."""
        return None

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        """Draw an exercise of this length from `rng` alone, so that it is reproducible."""

    def input_length(self, length: int) -> int:
        """Return the number of symbols of an input of this length."""
        return length

    def answer_length(self, length: int) -> int:
        """Return the number of symbols of the answer to an input of this length."""
        return 1

    def counted(self, answer: np.ndarray) -> np.ndarray:
        """Return which symbols of answers [..., m] count in the accuracy, bool [..., m].

        These are all of them, or those up to and including the first terminator.
        """
        if self.terminator is None:
            return np.ones(answer.shape, bool)
        ended = np.cumsum(answer == self.terminator, axis=-1)
        return (ended == 0) | ((ended == 1) & (answer == self.terminator))

    def check_length(self, length: int) -> None:
        """Refuse a length for which the rule is not defined.

        Raises:
            UserError: `length` is below `shortest` or above `longest`.
        """
        if length < self.shortest or (self.longest is not None and length > self.longest):
            limit = "" if self.longest is None else f", at most {self.longest}"
            raise UserError(
                f"{type(self).__name__} has no exercise of length {length}: "
                f"it is at least {self.shortest}{limit}"
            )


def bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw fair bits, int [count]."""
    return rng.integers(0, 2, count)


def terminated(result: np.ndarray, terminator: int, width: int) -> np.ndarray:
    """Return the result, the terminator and zeros, int [width]."""
    answer = np.zeros(width, np.int64)
    answer[: len(result)] = result
    answer[len(result)] = terminator
    return answer


def encoded(text: str, alphabet: str) -> np.ndarray:
    """Return the index of each character in the alphabet, int [n]."""
    return np.array([alphabet.index(character) for character in text], np.int64)
