"""Decoding with Infini-attention: the state is a memory and the segment, whatever the length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import LENGTHS, NEW, PROMPT, SIZE, TOKENS, TRAINED, deviation, filled, logprobs

from fire_lm.generation import Beam, generate
from fire_lm.generation.cache import prefill
from fire_lm.models import Decoder, InfiniAttention, Layers, build_decoder
from fire_lm.positions.fire import FIRE
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE


def build(*position, **settings) -> Decoder:
    return build_decoder(SIZE, position, 32, TRAINED, dtype="float32", **settings)


@pytest.mark.ci
@pytest.mark.parametrize(
    "model, lengths",
    [
        (build(FIRE, mixer=InfiniAttention(4, "delta"), log_n=LogN()), LENGTHS),
        # A prompt that fills segments, one that begins one, and the shortest.
        (build(Layers(RoPE, mixer=InfiniAttention(3)), NoPE), np.array([12, 13, 1], np.int32)),
        (build(RoPE, mixer=InfiniAttention(1)), LENGTHS),
        (build(RoPE, mixer=InfiniAttention(20)), LENGTHS),  # longer than any prompt
    ],
    ids=["delta", "every second layer", "segments of one", "one segment"],
)
def test_decoding_is_the_full_forward_pass(model, lengths):
    assert deviation(model, lengths) < 1e-5


@pytest.mark.ci
def test_beams_reorder_the_memory():
    """The hypotheses' log-probabilities are those of one pass over each."""
    model = build(RoPE, mixer=InfiniAttention(3, "delta"))
    params, prompts = filled(model), TOKENS[:, :PROMPT]
    found = generate(model, params, prompts, LENGTHS, new_tokens=NEW, method=Beam(3))
    expected = logprobs(model, params, found.tokens_BKT[:, 0])
    np.testing.assert_allclose(found.logprobs_BKT[:, 0], expected, atol=1e-4)


@pytest.mark.ci
def test_the_state_has_the_same_size_after_64_segments():
    """It holds, for each layer and row, two memories and the keys of two segments at most."""
    model, segment, new = build(RoPE, mixer=InfiniAttention(4)), 4, 8
    token = jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]

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
