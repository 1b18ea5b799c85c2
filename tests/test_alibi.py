"""ALiBi against its official slopes, written out."""

import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.positions.alibi import ALiBi, alibi_slopes

# Press et al.'s code; 12 heads are neither sorted nor 2^(-8k/12). As exponents of 1/2.
OFFICIAL = {
    1: [8],
    2: [4, 8],
    3: [4, 8, 2],
    6: [2, 4, 6, 8, 1, 3],
    8: [1, 2, 3, 4, 5, 6, 7, 8],
    12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
    16: [k / 2 for k in range(1, 17)],
}


@pytest.mark.parametrize("num_heads", OFFICIAL)
def test_slopes_are_the_official_ones(num_heads):
    expected = 0.5 ** np.array(OFFICIAL[num_heads], np.float64)
    np.testing.assert_allclose(alibi_slopes(num_heads), expected, rtol=1e-7)


def test_twelve_heads_are_not_the_formula_of_powers_of_two():
    assert not np.allclose(np.sort(alibi_slopes(12)), np.sort(2.0 ** (-8 * np.arange(1, 13) / 12)))


def test_bias_is_minus_slope_times_distance():
    """Query 4000 minus key, in float64."""
    k_pos = np.array([0, 1, 2047, 3743, 3744, 3999, 4000])
    alibi = ALiBi(num_heads=12, head_dim=8, train_length=64)
    ours = alibi.bias({}, jnp.array([[4000]]), jnp.asarray(k_pos)[None], 4001)
    expected = -(0.5 ** np.array(OFFICIAL[12]))[:, None] * (4000 - k_pos)[None, :]
    np.testing.assert_allclose(ours[0, :, 0], expected, rtol=1e-6)
