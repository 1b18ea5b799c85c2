"""Decoding with cached keys or memories against the full forward pass, for every encoding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import CLASSES, by_tier
from sample_decoders import (
    LENGTHS,
    NEW,
    PROMPT,
    SIZE,
    TOKENS,
    TRAINED,
    configured,
    deviation,
    deviation_of_beams,
    filled,
)

from fire_lm.generation.cache import prefill
from fire_lm.models import Decoder, InfiniAttention, Layers, build_decoder
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.positions.rope import RoPE

# A bias and a rotation; the ci tier tests other files and those that change the embedding.
QUICK = ("fire", "rope")
# Of the variants, those that differ in what is cached or in the length that decoding is told.
OF_DECODING = ("fire_and_rope", "nope_every_4th", "rope_dynamic_ntk", "alibi_pi", "fire_sink",
               "fire_ssmax", "swan", "fox_fire")  # fmt: skip


@pytest.mark.parametrize("name", by_tier(QUICK, (*CLASSES, *OF_DECODING)))
def test_decoding_is_the_full_forward_pass(name):
    assert deviation(configured(name), LENGTHS) < 1e-5


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
                build(FIRE, mixer=InfiniAttention(4, "delta"), log_n=LogN()),
                build(RoPE, mixer=InfiniAttention(1)),
                build(RoPE, mixer=InfiniAttention(20)),  # longer than any prompt
            )
        ),
    ],
)
def test_decoding_with_windows_chunks_and_memories(model):
    assert deviation(model) < 1e-5


@pytest.mark.ci
def test_decoding_prompts_that_fill_segments_of_a_memory():
    """One fills segments, one begins another, and one is the shortest."""
    model = build(Layers(RoPE, mixer=InfiniAttention(3)), NoPE)
    assert deviation(model, np.array([12, 13, 1], np.int32)) < 1e-5


@pytest.mark.ci
@pytest.mark.parametrize(
    "model",
    [
        build(Layers(RoPE, window=3), Layers(FIRE, chunk=4)),
        build(RoPE, mixer=InfiniAttention(3, "delta")),
    ],
    ids=["windows", "memory"],
)
def test_the_state_follows_the_beams(model):
    """A wrong parent would give other log-probabilities than one pass over the hypothesis."""
    assert deviation_of_beams(model) < 1e-4


@pytest.mark.ci
@pytest.mark.parametrize(
    "more",
    [
        ("fire", "log_n/inference_both"),
        ("rope", "log_n/training"),
        ("fire", "resampling/even"),
        ("sinusoidal", "resampling/random"),
        ("t5", "POSITION = [@T5, @ALiBi]", "build_decoder.share_position = True"),
        ("xpos", "POSITION = [@XPos, @NoPE, @FIRE, @KERPLELog]"),
    ],
    ids=" ".join,
)
def test_decoding_with_all_that_changes_attention(more):
    """Log n, resampled positions, and schedules beyond those of configs/positions."""
    assert deviation(configured(*more), LENGTHS) < 1e-5


@pytest.mark.ci
def test_a_bfloat16_model_has_a_bfloat16_cache():
    """It decodes like its full pass, up to rounding."""
    model = configured("fire", dtype="bfloat16")
    _, cache = jax.eval_shape(
        lambda params: prefill(
            *(model, params, TOKENS[:, :PROMPT], jnp.asarray(LENGTHS), jnp.arange(99)),
            *(NEW, 1, PROMPT + NEW),
        ),
        filled(model),
    )
    assert {
        array.dtype for array in jax.tree.leaves((cache[0].state.prompt, cache[0].state.own))
    } == {jnp.dtype("bfloat16")}
    assert deviation(model, LENGTHS) < 0.01


@pytest.mark.ci
@pytest.mark.parametrize("name", ["fire", "rope_dynamic_ntk"])
def test_decoding_prompts_of_one_length(name):
    assert deviation(configured(name), np.full(3, PROMPT, np.int32)) < 1e-5


@pytest.mark.ci
def test_another_context_length_is_seen():
    assert deviation(configured("rope_dynamic_ntk"), LENGTHS, cached=4 * TRAINED) > 1e-3
