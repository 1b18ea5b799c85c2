"""Angles against integer arithmetic with 250 binary digits after the point."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.positions.angles import angles, pair_frequencies

DIGITS = 250
FREQUENCIES = np.concatenate([pair_frequencies(64, 10_000.0), pair_frequencies(16, 5e5) / 7])
NEAR = [0, 1, 2, 17, 255, 256, 257, 511, 2047, 8191, 8192, 131_071, 131_072]
FAR = [2**20 + 1, 2**23 - 1, 2**24 - 1, 2**24]
BOUND = 1e-6  # radians


def two_pi() -> int:
    """Return 2 pi times 2^DIGITS, from Machin's formula pi = 16 arctan(1/5) - 4 arctan(1/239)."""

    def arctan_of_inverse(n: int) -> int:
        power, total, k = (1 << (DIGITS + 20)) // n, 0, 0
        while power:
            total += (-1) ** k * (power // (2 * k + 1))
            power, k = power // n**2, k + 1
        return total

    return 2 * (16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) >> 20


TWO_PI = two_pi()


def error(ours: np.ndarray, pos: list[float]) -> float:
    """Return the largest difference from `pos * frequency` modulo full turns, in radians."""
    worst = 0.0
    for row, p in zip(np.asarray(ours, np.float64), pos, strict=True):
        for mine, frequency in zip(row, FREQUENCIES, strict=True):
            exact = scaled(p) * scaled(float(frequency)) >> DIGITS
            off = (scaled(float(mine)) - exact) % TWO_PI
            worst = max(worst, min(off, TWO_PI - off) / 2**DIGITS)
    return worst


def scaled(x: float) -> int:
    """Return x times 2^DIGITS, exactly, since a float is a fraction."""
    numerator, denominator = x.as_integer_ratio()
    return (numerator << DIGITS) // denominator


def test_the_references_pi():
    assert TWO_PI / 2**DIGITS == 2 * math.pi


@pytest.mark.parametrize("sign", [1, -1])
def test_integer_positions(sign):
    pos = [sign * p for p in NEAR + FAR]
    ours = jax.jit(lambda p: angles(p, FREQUENCIES))(jnp.array(pos, jnp.int32))
    assert ours.dtype == jnp.float32 and np.max(np.abs(ours)) <= math.pi + 0.02
    assert error(ours, pos) < BOUND
    as_floats = angles(jnp.array(pos, jnp.float32), FREQUENCIES)
    np.testing.assert_allclose(as_floats, ours, atol=BOUND)


def test_positions_between_integers():
    """Random positions can be such numbers; all of these are exact in float32."""
    pos = [sign * (p + part) for p in NEAR for part in (0.5, 0.984375) for sign in (1, -1)]
    assert error(angles(jnp.array(pos, jnp.float32), FREQUENCIES), pos) < BOUND


def test_any_shape_and_frequencies_above_half_a_turn():
    """At integer positions, adding a full turn to a frequency changes nothing."""
    pos = jnp.arange(12, dtype=jnp.int32).reshape(2, 3, 2)
    few = np.array([0.25, 3.0])
    ours, more = angles(pos, few), angles(pos, few + 2 * math.pi)
    assert ours.shape == (2, 3, 2, 2)
    np.testing.assert_allclose(jnp.cos(ours), jnp.cos(more), atol=1e-6)
    np.testing.assert_allclose(jnp.sin(ours), jnp.sin(more), atol=1e-6)


def test_the_plain_product_in_float32_misses_the_bound():
    """It is as accurate near 0, but off by 0.002 at 131,071 and by 0.09 at 2^22."""

    def naive(pos: list[int]) -> np.ndarray:
        return np.array(pos, np.float32)[:, None] * FREQUENCIES.astype(np.float32)[None, :]

    assert error(naive([0, 1]), [0, 1]) < BOUND
    assert error(naive([131_071]), [131_071]) > 1e-3
    assert error(naive([2**22 - 1]), [2**22 - 1]) > 0.05
