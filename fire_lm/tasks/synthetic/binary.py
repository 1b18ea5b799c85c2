"""Binary numbers of any size, as arrays of bits."""

from __future__ import annotations

import numpy as np

from fire_lm.tasks.synthetic.task import bits

SEPARATOR = END = 2  # The symbol that separates numbers in the input and ends an answer.


def positive_bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw a number uniformly from 1 to 2^count - 1, as bits, int [count], lowest bit first."""
    while not (drawn := bits(rng, count)).any():
        pass
    return drawn


def number(low_first: np.ndarray) -> int:
    """Return the number that these bits represent, lowest bit first."""
    return int("".join(map(str, low_first[::-1].tolist())), 2)


def low_first(value: int) -> np.ndarray:
    """Return the bits of a number, int [k], lowest first, without leading zeros; [0] for 0."""
    return np.array([int(digit) for digit in f"{value:b}"[::-1]], np.int64)


def two_numbers(rng: np.random.Generator, length: int) -> tuple[np.ndarray, int, int]:
    """Draw an input, int [length], of two positive numbers, and return it with the numbers.

    Each is written lowest bit first, and a separator is between them. The number of bits of the
    first number is uniform from 1 to length - 2. The length must be 3 or more.
    """
    count = int(rng.integers(1, length - 1))
    first, second = positive_bits(rng, count), positive_bits(rng, length - 1 - count)
    return np.concatenate([first, [SEPARATOR], second]), number(first), number(second)


def lone_number(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draw the only number of an input that is too short for two, int [length], lowest bit first.

    As in the benchmark, the number is uniform from 0 to 2^length - 2, so its bits are never all 1.
    """
    while (drawn := bits(rng, length)).all():
        pass
    return drawn
