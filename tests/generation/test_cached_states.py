"""What decoding caches: only what a later token can see, whatever the length of the text."""

import functools

import jax
import jax.numpy as jnp
import pytest
from sample_decoders import LENGTHS, NEW, PROMPT, SIZE, TOKENS, TRAINED, filled, shapes_of

from fire_lm.attention.cached import OwnKeys, PromptKeys
from fire_lm.attention.decay import Decay
from fire_lm.generation.cache import prefill
from fire_lm.models import InfiniAttention, Layers, build_decoder
from fire_lm.models.mixers import State
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.sharding import MeshShape, abstract_mesh


def test_a_windowed_turn_caches_its_window_only():
    layers = (Layers(RoPE, window=4), NoPE)
    model = build_decoder(SIZE, layers, 32, TRAINED, dtype="float32")
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
def test_the_state_has_the_same_size_after_64_segments():
    """It holds, for each layer and row, two memories and the keys of two segments at most."""
    model = build_decoder(SIZE, RoPE, 32, TRAINED, dtype="float32", mixer=InfiniAttention(4))
    segment, new = 4, 8
    params = shapes_of(model)

    def size(segments: int) -> int:
        length = segment * segments
        prompts = jax.ShapeDtypeStruct((1, length), jnp.int32)
        _, (past,) = jax.eval_shape(
            lambda params, prompts: prefill(
                *(model, params, prompts, jnp.full(1, length), jnp.arange(length + new), new),
                continuations=1,
                context_length=length + new,
            ),
            params,
            prompts,
        )
        return past.state.size_in_bytes()

    layers, heads, width = SIZE.num_layers, SIZE.num_heads, SIZE.head_dim
    memories, keys = 2 * width * (width + 1), 2 * 2 * (segment - 1) * width
    assert size(2) == size(64) == 4 * layers * heads * (memories + keys)
