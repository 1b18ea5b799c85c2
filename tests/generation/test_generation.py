"""Decoding with cached keys against the full forward pass, for every encoding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import by_tier
from sample_decoders import TRAINED, configured, filled

from fire_lm.generation.cache import prefill, read_token
from fire_lm.models import Decoder

PROMPT, NEW = 14, 10  # the prefill width exceeds the prompts
LENGTHS = np.array([12, 5, 9], np.int32)
TOKENS = np.random.default_rng(0).integers(1, 32, (3, PROMPT + NEW)).astype(np.int32)


def deviation(model: Decoder, lengths: np.ndarray, cached: int | None = None) -> float:
    """Return teacher-forced decoding's largest error, in standard deviations of the full logits.

    `cached` is the context length used in decoding; by default, that of the full pass.
    """
    params, context = filled(model), int(lengths.max()) + NEW
    pos_C = model.resampling.evaluation_positions(context)
    padded = jnp.pad(pos_C[0], (0, PROMPT + NEW - context), mode="edge")
    told = context if cached is None else cached

    @jax.jit
    def decoded(params: Any) -> jax.Array:
        prompts = jnp.where(np.arange(PROMPT)[None] < lengths[:, None], TOKENS[:, :PROMPT], 0)
        first_BV, cache = prefill(
            *(model, params, prompts, jnp.asarray(lengths), padded, NEW),
            continuations=1,
            context_length=told,
        )

        def one(cache: Any, index: jax.Array) -> Any:
            token_BK = jnp.take_along_axis(jnp.asarray(TOKENS), lengths[:, None] + index, axis=1)
            logits_BKV, cache = read_token(
                model, params, cache, token_BK, jnp.asarray(lengths), padded, index, told
            )
            return cache, logits_BKV[:, 0]

        _, rest_TBV = jax.lax.scan(one, cache, jnp.arange(NEW - 1))
        return jnp.concatenate([first_BV[:, None], jnp.swapaxes(rest_TBV, 0, 1)], axis=1)

    whole = jax.jit(model.apply)({"params": params}, jnp.asarray(TOKENS[:, :context]), pos_C)
    rows = np.asarray(lengths)[:, None] - 1 + np.arange(NEW)[None]
    expected = np.take_along_axis(np.asarray(whole), rows[..., None], axis=1)
    return float(np.max(np.abs(decoded(params) - expected)) / np.std(expected))


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
