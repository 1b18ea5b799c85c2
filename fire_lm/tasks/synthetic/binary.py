"""Numbers of any size as bits."""

from __future__ import annotations

import numpy as np

from fire_lm.tasks.synthetic.task import bits

SEPARATOR = END = 2  # of two numbers in the input; of the number in the answer


def positive_bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """int [count], lowest bit first: a number uniform from 1 to 2^count - 1."""
    while not (drawn := bits(rng, count)).any():
        pass
    return drawn


def number(low_first: np.ndarray) -> int:
    """The number that these bits write, lowest first."""
    return int("".join(map(str, low_first[::-1].tolist())), 2)


def low_first(value: int) -> np.ndarray:
    """int [k]: the bits of a number, lowest first, without zeros above the highest; 0 has one."""
    return np.array([int(digit) for digit in f"{value:b}"[::-1]], np.int64)


def two_numbers(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The bits of two positive numbers, lowest first, which are `length - 1` bits together.

    The first has 1 to length - 2 bits, uniformly. Needs a length of 3.
    """
    first = int(rng.integers(1, length - 1))
    return positive_bits(rng, first), positive_bits(rng, length - 1 - first)


def lone_number(rng: np.random.Generator, length: int) -> np.ndarray:
    """int [length]: what the benchmark draws where two numbers have no room, lowest bit first.

    Uniform from 0 to 2^length - 2: never all ones.
    """
    while (drawn := bits(rng, length)).all():
        pass
    return drawn
