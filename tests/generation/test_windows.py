"""Windows and chunks in decoding: the cache holds only what a later token can see."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import LENGTHS, NEW, PROMPT, SIZE, TOKENS, TRAINED, deviation, filled, logprobs

from fire_lm.attention.cached import OwnKeys, PromptKeys
from fire_lm.attention.decay import Decay
from fire_lm.generation import Beam, generate
from fire_lm.generation.cache import prefill
from fire_lm.models import Decoder, Layers, build_decoder
from fire_lm.models.mixers import State
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.positions.rope import RoPE
from fire_lm.sharding import MeshShape, abstract_mesh


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


def test_only_what_is_split_by_head_is_divided_by_the_tensor_axis():
    """Keys and values are; decays, and the states of other mixers, are on each of its devices."""

    def floats(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    mesh = abstract_mesh(MeshShape(1, 2, 4), 8)
    keys = [floats(3, 2, 4, 8, 5)] * 2  # [L, B, N, H, P], of 960 numbers each
    own = [floats(3, 2, 1, 6, 4, 8)] * 2  # [L, B, K, R, N, H], of 1152
    decay = Decay(floats(3, 2, 4, 5), floats(3, 2, 4, 5))  # of 120
    state = State(PromptKeys(*keys), OwnKeys(*own))
    assert 8 * state.size_in_bytes(mesh) == state.size_in_bytes() == 4 * 2 * (960 + 1152)
    gated = state._replace(prompt=PromptKeys(*keys, decay))
    assert gated.size_in_bytes(mesh) - state.size_in_bytes(mesh) == 4 * 2 * 120 // 2
    assert State(own=floats(3, 2, 1, 32)).size_in_bytes(mesh) == 4 * 3 * 2 * 32 // 2


@pytest.mark.ci
def test_the_state_follows_the_beams():
    """A wrong parent would give other log-probabilities than one pass over the hypothesis."""
    model = build(Layers(RoPE, window=3), Layers(FIRE, chunk=4))
    params = filled(model)
    found = generate(model, params, TOKENS[:, :PROMPT], LENGTHS, new_tokens=NEW, method=Beam(3))
    expected = logprobs(model, params, found.tokens_BKT[:, 0])
    np.testing.assert_allclose(found.logprobs_BKT[:, 0], expected, atol=1e-4)
