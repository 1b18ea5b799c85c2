"""Decoding with cached keys against the full forward pass, for every encoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import by_tier
from sample_decoders import LENGTHS, NEW, PROMPT, TOKENS, TRAINED, configured, deviation, filled

from fire_lm.generation.cache import prefill

# A bias and a rotation; the ci tier tests other files and those that change the embedding.
QUICK = ("fire", "rope")


@pytest.mark.parametrize("name", by_tier(QUICK))
def test_decoding_is_the_full_forward_pass(name):
    assert deviation(configured(name), LENGTHS) < 1e-5


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
