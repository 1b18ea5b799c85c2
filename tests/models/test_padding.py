"""Padded inputs: few lengths, and positions that the model and its kernels can read."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.generation import generate
from fire_lm.models import (
    Decoder,
    ModelSize,
    padded_length,
    padded_positions,
    readable_length,
)
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.learned import Learned
from fire_lm.positions.resampling import RandomizedPositions

SIZE = ModelSize(
    num_layers=1, num_heads=2, head_dim=64, hidden_size=128, mlp_size=16, init_std=0.02
)


def model_with(kind: type, **settings: Any) -> Decoder:
    return Decoder(SIZE, (kind(2, 64, train_length=40, hidden_size=128),), 8, **settings)


def test_lengths_are_few_and_waste_a_third_at_most():
    lengths = [padded_length(tokens, 16) for tokens in range(1, 1001)]
    assert sorted(set(lengths)) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(n <= padded <= max(16, 1.5 * n) for n, padded in enumerate(lengths, 1))


def test_padding_continues_the_positions_of_the_tokens():
    np.testing.assert_array_equal(padded_positions(model_with(ALiBi), 30, 48), np.arange(48))
    np.testing.assert_array_equal(padded_positions(model_with(ALiBi), 30, 20), np.arange(20))


def test_a_position_that_a_model_lacks_is_not_used():
    learned = model_with(Learned)
    assert readable_length(learned, 39, 40) == 40 and readable_length(learned, 39, 48) == 39
    np.testing.assert_array_equal(padded_positions(learned, 39, 48), np.minimum(np.arange(48), 38))
    drawn = model_with(ALiBi, resampling=RandomizedPositions(64, evaluation="even"))
    positions = padded_positions(drawn, 3, 5)
    np.testing.assert_array_equal(positions, [0, 31, 63, 63, 63])


@pytest.mark.ci
def test_the_tpu_kernel_reads_prompts_whose_padding_exceeds_the_context():
    """The kernels return NaN for a bias whose positions do not follow one another."""
    prompts = jnp.zeros((1, 192), jnp.int32)
    tokens = {}
    for attention in ("tpu", "dense"):
        model = model_with(ALiBi, attention=attention, dtype=jnp.float32)
        params = model.init(jax.random.key(0), prompts[:, :2], jnp.arange(2)[None])["params"]
        found = generate(model, params, prompts, np.array([130], np.int32), new_tokens=2)
        tokens[attention] = found.tokens_BKT.tolist()
        assert np.isfinite(found.logprobs_BKT).all()
    assert tokens["tpu"] == tokens["dense"]
