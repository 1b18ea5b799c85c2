"""Windows and chunks in decoding: the cache holds only what a later token can see."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import LENGTHS, NEW, PROMPT, SIZE, TOKENS, TRAINED, deviation, filled, logprobs

from fire_lm.generation import Beam, generate
from fire_lm.generation.cache import prefill
from fire_lm.models import Decoder, Layers, build_decoder
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.positions.rope import RoPE


def build(*position: Any, **settings: Any) -> Decoder:
    return build_decoder(SIZE, position, 32, TRAINED, dtype="float32", **settings)


# Prompts of 5, 9 and 12 tokens: shorter than, as long as and longer than the windows.
@pytest.mark.parametrize(
    "model",
    [
        build(Layers(FIRE, window=4), Layers(RoPE, window=9)),
        *(
            pytest.param(model, marks=pytest.mark.ci)
            for model in (
                build(Layers(ALiBi, window=1), Layers(FIRE, window=2)),
                build(Layers(RoPE, window=12, log_n=LogN()), Layers(NoPE, window=99)),
                build(
                    Layers(RoPE, chunk=5), Layers(FIRE, chunk=6, window=4, log_n=LogN(on="both"))
                ),
                build(Layers(RoPE, window=3), resampling=RandomizedPositions(64, "even")),
            )
        ),
    ],
)
def test_decoding_is_the_full_forward_pass(model):
    assert deviation(model) < 1e-5


def test_a_windowed_turn_caches_its_window_only():
    model = build(Layers(RoPE, window=4), NoPE)
    start = functools.partial(prefill, model, new_tokens=NEW, continuations=2, context_length=24)
    prompts = (jnp.asarray(TOKENS[:, :PROMPT]), jnp.asarray(LENGTHS), jnp.arange(24))
    _, cache = jax.eval_shape(start, filled(model), *prompts)
    windowed, full = (past.state for past in cache)
    assert windowed.prompt.k_BNHP.shape[-1] == windowed.own.k_BKRNH.shape[3] == 3
    assert full.prompt.k_BNHP.shape[-1] == PROMPT and full.own.k_BKRNH.shape[3] == NEW
    token = 2 * 3 * 48 * 4 * 2  # bytes of keys and values: 3 prompts, 48 dims, float32, 2 layers
    assert windowed.size_in_bytes() == 3 * token + 2 * 3 * token
    assert full.size_in_bytes() == PROMPT * token + 2 * NEW * token


@pytest.mark.ci
def test_the_state_follows_the_beams():
    """A wrong parent would give other log-probabilities than one pass over the hypothesis."""
    model = build(Layers(RoPE, window=3), Layers(FIRE, chunk=4))
    params = filled(model)
    found = generate(model, params, TOKENS[:, :PROMPT], LENGTHS, new_tokens=NEW, method=Beam(3))
    expected = logprobs(model, params, found.tokens_BKT[:, 0])
    np.testing.assert_allclose(found.logprobs_BKT[:, 0], expected, atol=1e-4)
