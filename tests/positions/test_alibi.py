"""ALiBi against its official slopes, written out, and ALiBi-PI."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.alibi import ALiBi, alibi_slopes

# Press et al.'s code; for 12 heads, slopes are neither sorted nor 2^(-8k/12). As exponents of 1/2.
OFFICIAL = {
    1: [8],
    2: [4, 8],
    3: [4, 8, 2],
    6: [2, 4, 6, 8, 1, 3],
    8: [1, 2, 3, 4, 5, 6, 7, 8],
    12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
    16: [k / 2 for k in range(1, 17)],
}
SLOPES_12 = 0.5 ** np.array(OFFICIAL[12], np.float64)
# First query and number of queries.
BLOCKS = [(0, 1), (0, 2), (0, 17), (0, 512), (8192, 64), (131_072, 64)]


def bias(q_pos: np.ndarray, k_pos: np.ndarray, context_length: int = 2048, **fields: Any):
    alibi = ALiBi(12, 8, 2048, 96, **fields)
    q_pos_BT, k_pos_BS = jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None]
    return np.asarray(alibi.bias({}, q_pos_BT, k_pos_BS, context_length))[0]


@pytest.mark.parametrize("num_heads", OFFICIAL)
def test_slopes_are_the_official_ones(num_heads):
    expected = 0.5 ** np.array(OFFICIAL[num_heads], np.float64)
    np.testing.assert_allclose(alibi_slopes(num_heads), expected, rtol=1e-12)


def test_twelve_heads_are_not_the_formula_of_powers_of_two():
    assert not np.allclose(np.sort(alibi_slopes(12)), np.sort(2.0 ** (-8 * np.arange(1, 13) / 12)))


@pytest.mark.parametrize("first, length", BLOCKS)
def test_bias_is_minus_slope_times_distance(first, length):
    q_pos = first + np.arange(length)
    k_pos = np.unique(np.concatenate([np.linspace(0, first, 50).astype(int), q_pos]))
    expected = -SLOPES_12[:, None, None] * np.abs(q_pos[:, None] - k_pos)
    np.testing.assert_allclose(bias(q_pos, k_pos), expected, rtol=1e-6)
    if length > 1:  # slopes are not sorted, and distances are not divided by the length
        assert not np.allclose(bias(q_pos, k_pos), np.sort(expected, axis=0), rtol=1e-6)


def test_interpolation_divides_slopes_by_the_excess_length():
    """As in 2310.13017, by 8192 / 2048 = 4 in every row, and by 1 up to the training length."""
    pos = np.array([0, 1, 700, 2047, 2048, 8191])
    plain = bias(pos, pos, 8192)
    np.testing.assert_array_equal(bias(pos, pos, 8192, interpolate=True), plain / 4)
    assert np.any(plain != plain / 4)
    three_halves = bias(pos, pos, 3072, interpolate=True)
    np.testing.assert_allclose(three_halves, plain / 1.5, rtol=1e-6)
    for length in (1, 1024, 2048):
        np.testing.assert_array_equal(bias(pos, pos, length, interpolate=True), plain)


def test_nape_has_slopes_in_some_heads_only():
    """Those of a model with so many heads; the other heads have no bias."""
    pos = np.array([0, 1, 700, 2047])
    half = bias(pos, pos, biased_fraction=0.5)
    expected = -(0.5 ** np.array(OFFICIAL[6]))[:, None, None] * np.abs(pos[:, None] - pos)
    np.testing.assert_allclose(half[:6], expected, rtol=1e-6)
    assert not np.any(half[6:])
    squeezed = bias(pos, pos, 8192, biased_fraction=0.5, interpolate=True)
    np.testing.assert_array_equal(squeezed, half / 4)
    for fraction in (0.0, 0.55, 1.5):
        with pytest.raises(UserError, match="ALiBi.biased_fraction is"):
            bias(pos, pos, biased_fraction=fraction)


def test_a_sweep_may_turn_interpolation_on():
    assert ALiBi.evaluation_fields == ("interpolate",)
