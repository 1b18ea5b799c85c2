"""The interface of synthetic tasks, which are rules that generate inputs and their answers."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from fire_lm.errors import UserError

# A task has a field of this type where the benchmark's code differs from the paper's text.
Variant = Literal["code", "text"]


@dataclasses.dataclass(frozen=True)
class Sample:
    """An exercise as sequences of symbols.

    Attributes:
      inputs: The input symbols, int [n], each from 0 to `Task.input_symbols - 1`.
      answer: The answer symbols, int [m], each from 0 to `Task.answer_symbols - 1`.
      queries: Input symbols, int [m], each of which requests one answer symbol; None if the
        complete input requests the answer.
    """

    inputs: np.ndarray
    answer: np.ndarray
    queries: np.ndarray | None = None


class Task(abc.ABC):
    """A rule that generates exercises.

    Each task is a frozen dataclass in a separate file. A symbol that occurs in both inputs and
    answers has the same number in both. A task overrides a property that does not depend on its
    fields with a class attribute, such as `input_symbols = 2`.

    Attributes:
      least: The smallest values of fields, by name.
    """

    least: ClassVar[Mapping[str, int]] = {}

    @property
    def label(self) -> str:
        """The task's name in tables: the class name and all fields that differ from defaults."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return type(self).__name__ + f"({', '.join(changed)})" * bool(changed)

    @property
    @abc.abstractmethod
    def input_symbols(self) -> int:
        """The number of distinct symbols that can occur in inputs."""

    @property
    @abc.abstractmethod
    def answer_symbols(self) -> int:
        """The number of distinct symbols that can occur in answers."""

    @property
    def terminator(self) -> int | None:
        """The symbol that ends the scored part of an answer; None if all symbols are scored."""
        return None

    @property
    def shortest(self) -> int:
        """The smallest length for which the rule is defined."""
        return 1

    @property
    def longest(self) -> int | None:
        """The largest length for which the rule is defined, or None if lengths have no limit."""
        return None

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        """Draw an exercise of this length, using no source of randomness other than `rng`."""

    def input_length(self, length: int) -> int:
        """Return the number of symbols in the input of an exercise of this length."""
        return length

    def answer_length(self, length: int) -> int:
        """Return the number of symbols in the answer to an exercise of this length."""
        return 1

    def counted(self, answer: np.ndarray) -> np.ndarray:
        """Return which symbols of answers [..., m] count towards the accuracy, bool [..., m].

        All symbols count or, if there is a terminator, those up to and including the first one.
        """
        if self.terminator is None:
            return np.ones(answer.shape, bool)
        ended = np.cumsum(answer == self.terminator, axis=-1)
        return (ended == 0) | ((ended == 1) & (answer == self.terminator))

    def check_length(self, length: int) -> None:
        """Check that the rule is defined for a length.

        Raises:
          UserError: `length` is below `shortest` or above `longest`, or a field is below `least`.
        """
        for name, least in self.least.items():
            if (value := getattr(self, name)) < least:
                raise UserError(
                    f"{type(self).__name__}.{name} is {value}: it must be {least} or more"
                )
        if length < self.shortest or (self.longest is not None and length > self.longest):
            limit = "" if self.longest is None else f" and at most {self.longest}"
            raise UserError(
                f"{type(self).__name__} has no exercise of length {length}: "
                f"the length must be at least {self.shortest}{limit}"
            )


def bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw `count` bits, int [count], that are 0 or 1 with equal probability."""
    return rng.integers(0, 2, count)


def terminated(result: np.ndarray, terminator: int, width: int) -> np.ndarray:
    """Return the result, followed by the terminator and padded with zeros, int [width]."""
    answer = np.zeros(width, np.int64)
    answer[: len(result)] = result
    answer[len(result)] = terminator
    return answer


def encoded(text: str, alphabet: str) -> np.ndarray:
    """Return the index in the alphabet of each character of the text, int [n]."""
    return np.array([alphabet.index(character) for character in text], np.int64)
