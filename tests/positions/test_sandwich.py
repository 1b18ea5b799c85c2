"""Sandwich against its sum of cosines in numpy float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.sandwich import Sandwich, cosine_sum, sandwich_frequencies

# First query and number of queries.
BLOCKS = [(0, 1), (0, 2), (0, 17), (0, 512), (8192, 64), (131_072, 64)]


def formula(distance: np.ndarray, num_heads: int, num_terms: int, first_term: int = 1):
    """Return the sum of cosines for head h of 1..H, divided by 8 h / H; `[N, T, S]`."""
    k = np.arange(first_term, first_term + num_terms)
    total = np.sum(np.cos(distance[..., None] / 10_000.0 ** (k / num_terms)), axis=-1)
    h = np.arange(1, num_heads + 1)
    return total / (h * 8 / num_heads)[:, None, None]


def bias(q_pos: np.ndarray, k_pos: np.ndarray, num_heads: int = 12, num_terms: int = 64):
    sandwich = Sandwich(num_heads, 8, 64, 96, num_terms)
    return sandwich.bias({}, jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None], 64)[0]


@pytest.mark.parametrize("first, length", BLOCKS)
def test_values_are_the_formula(first, length):
    """They are as accurate far out as near, since angles are exact at every position."""
    q_pos = first + np.arange(length)
    k_pos = np.unique(np.concatenate([np.linspace(0, first, 50).astype(int), q_pos]))
    ours, distance = np.asarray(bias(q_pos, k_pos)), q_pos[:, None] - k_pos
    expected = formula(distance, 12, 64)
    largest = np.max(np.abs(expected), axis=(1, 2), keepdims=True)
    assert np.all(np.abs(ours - expected) <= 1e-5 * largest)
    if length > 1:  # the sinusoidal encoding's dot product counts terms from 0
        assert np.max(np.abs(ours - formula(distance, 12, 64, first_term=0))) > 1e-2


@pytest.mark.parametrize("num_heads, num_terms", [(1, 1), (3, 7), (16, 128)])
def test_heads_and_terms(num_heads, num_terms):
    pos = np.arange(40)
    expected = formula(pos[:, None] - pos, num_heads, num_terms)
    ours = bias(pos, pos, num_heads, num_terms)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.max(expected))


def test_positions_may_lie_between_integers():
    pos = np.sort(np.random.default_rng(0).uniform(0, 9000, 50)).astype(np.float32)
    expected = formula(pos.astype(np.float64)[:, None] - pos, 12, 64)
    ours = bias(pos, pos)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.max(expected))
    assert np.max(np.abs(bias(np.floor(pos), pos) - expected)) > 1e-2


def test_positions_may_differ_by_example():
    """Positions `[B, T]` give each example the same bits as by itself."""
    pos = jnp.asarray(np.random.default_rng(0).integers(0, 9000, (3, 20)), jnp.int32)
    frequency = sandwich_frequencies(64)
    together = cosine_sum(pos, pos, frequency)
    for example in range(3):
        alone = cosine_sum(pos[example : example + 1], pos[example : example + 1], frequency)
        np.testing.assert_array_equal(together[example], alone[0])


@pytest.mark.ci
@pytest.mark.parametrize("length", [2, 33, 300])
def test_a_row_does_not_depend_on_the_others_asked_for(length):
    """Rows are equal to the last bit; unless doubled, a single query would use another kernel."""
    pos, frequency = jnp.arange(length)[None], sandwich_frequencies(64)
    full = cosine_sum(pos, pos, frequency)
    for size in (1, 2, 7):
        rows = [
            cosine_sum(pos[:, start : start + size], pos, frequency)
            for start in range(0, length, size)
        ]
        np.testing.assert_array_equal(jnp.concatenate(rows, axis=1), full)


def test_mistakes_are_told():
    with pytest.raises(UserError, match=r"Sandwich\.num_terms"):
        bias(np.arange(2), np.arange(2), num_terms=0)
