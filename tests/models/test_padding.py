"""Padded inputs: few lengths, and positions that the model and its kernels can read."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.generation import generate
from fire_lm.models import (
    Decoder,
    ModelSize,
    Turn,
    padded_length,
    padded_positions,
    readable_length,
)
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.learned import Learned
from fire_lm.positions.resampling import RandomizedPositions

SIZE = ModelSize(
    num_layers=1, num_heads=2, head_dim=64, hidden_size=128, mlp_size=16, init_std=0.15
)


def model_with(kind: Callable[..., PositionalEncoding], **settings: Any) -> Decoder:
    encoding = kind(num_heads=2, head_dim=64, train_length=40, hidden_size=128)
    return Decoder(SIZE, (Turn(encoding),), 8, dtype=jnp.float32, **settings)


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
    logprobs = logprobs_by_attention(model_with(ALiBi), context_length=None)
    np.testing.assert_allclose(logprobs["tpu"], logprobs["dense"], atol=1e-5)


@pytest.mark.ci
def test_the_tpu_kernel_reads_prompts_at_the_context_length():
    """Interpolated slopes depend on the length of the complete input, not of the padded prompt."""
    model = model_with(functools.partial(ALiBi, interpolate=True))
    logprobs = logprobs_by_attention(model, context_length=400)
    np.testing.assert_allclose(logprobs["tpu"], logprobs["dense"], atol=1e-5)
    other = logprobs_by_attention(model, context_length=192)
    assert abs(other["dense"] - logprobs["dense"]).max() > 1e-3


def logprobs_by_attention(model: Decoder, context_length: int | None) -> dict[str, np.ndarray]:
    """Return the log-probabilities of two generated tokens for each implementation of attention."""
    prompts = jax.random.randint(jax.random.key(1), (1, 192), 1, 8)
    params = model.init(jax.random.key(0), prompts[:, :2], jnp.arange(2)[None])["params"]
    return {
        attention: generate(
            *(model.clone(attention=attention), params, prompts, np.array([130], np.int32)),
            new_tokens=2,
            context_length=context_length,
        ).logprobs_BKT
        for attention in ("tpu", "dense")
    }
