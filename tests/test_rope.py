"""RoPE against its definition as a product of complex numbers, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.rope import RoPE

HALF, BASE = 4, 500.0


def turned(x: np.ndarray, pos: np.ndarray) -> np.ndarray:
    """Pair k is the complex number (x[k], x[k + H/2]), turned by pos * base^(-2k/H)."""
    angle = pos[:, None] * BASE ** (-2 * np.arange(HALF) / (2 * HALF))
    z = (x[..., :HALF] + 1j * x[..., HALF:]) * np.exp(1j * angle)[None, :, None, :]
    return np.concatenate([z.real, z.imag], axis=-1)


def test_rotation_of_both_halves():
    """Queries and keys, each by its own positions; neighbours as pairs are something else."""
    rope = RoPE(num_heads=3, head_dim=2 * HALF, train_length=64, base=BASE)
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 70, 3, 2 * HALF))
    q_pos, k_pos = np.arange(70) + 30, np.arange(70)
    ours = rope.rotate({}, q, k, jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None], 100)
    for rotated, x, pos in zip(ours, (q, k), (q_pos, k_pos), strict=True):
        np.testing.assert_allclose(rotated, turned(np.asarray(x, np.float64), pos), atol=5e-5)
    interleaved = [0, 2, 4, 6, 1, 3, 5, 7]
    broken = turned(np.asarray(q, np.float64)[..., interleaved], q_pos)[
        ..., np.argsort(interleaved)
    ]
    assert np.max(np.abs(ours[0] - broken)) > 0.1


def test_an_odd_width_has_no_pairs():
    with pytest.raises(UserError, match="even"):
        RoPE(num_heads=12, head_dim=7, train_length=64)
