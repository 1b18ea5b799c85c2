"""Logits, losses and attention of one text: padding has no effect, and programs are shared."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_probes import MODELS, TOKENS, build, filled

from fire_lm.errors import UserError
from fire_lm.measures import text_probes
from fire_lm.measures.text_probes import attention_map, text_logits, text_losses
from fire_lm.models import Layers, layer_attention, query_logits
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.log_n import LogN
from fire_lm.positions.rope import RoPE

IDS = TOKENS[1:]  # the model reads token 0 before them, so TOKENS with 0 first
READ = jnp.asarray([0, *IDS], jnp.int32)[None]


def test_the_texts_of_the_tests_are_padded():
    model = build(ALiBi)
    assert text_probes.padded_width(model, READ.shape[1]) == 32 > READ.shape[1]


@pytest.mark.parametrize(
    "name",
    [name if name == "fire" else pytest.param(name, marks=pytest.mark.ci) for name in MODELS],
)
def test_values_are_those_of_the_model_without_padding(name):
    kinds, settings, layer = MODELS[name]
    model = build(*kinds, **settings)
    params = filled(model)
    pos_BT = model.resampling.evaluation_positions(READ.shape[1])
    logits_TV = np.asarray(jax.jit(model.apply)({"params": params}, READ, pos_BT))[0]
    np.testing.assert_allclose(text_logits(model, params, IDS), logits_TV, rtol=1e-4, atol=1e-5)

    losses = text_losses(model, params, IDS)
    assert losses.shape == IDS.shape and losses.dtype == np.float32
    log_p = logits_TV - np.logaddexp.reduce(logits_TV, axis=-1, keepdims=True)
    np.testing.assert_allclose(losses, -log_p[np.arange(len(IDS)), IDS], rtol=1e-4, atol=1e-5)

    found = attention_map(model, params, IDS, layer)
    ask = functools.partial(query_logits, model, layer=layer, query=len(IDS))
    score_NS = np.asarray(jax.jit(ask)(params, READ))[0]
    parts = (found.products + found.bias)[:, -1]
    parts = np.where(np.isnan(parts), -np.inf, parts)
    np.testing.assert_allclose(parts, score_NS, rtol=1e-4, atol=1e-4)
    apart = np.subtract.outer(np.arange(20), np.arange(20))
    window = model.turns[layer % len(model.turns)].window or 20
    unseen = (apart < 0) | (apart >= window)
    for part in (found.products, found.bias):
        np.testing.assert_array_equal(np.isnan(part), np.broadcast_to(unseen, part.shape))
    logits = np.where(unseen, -np.inf, found.products + found.bias)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-4, atol=1e-6)


def test_the_bias_is_apart_from_the_products():
    """ALiBi has a bias and leaves q·k alone; RoPE is the reverse."""
    model = build(ALiBi)
    found = attention_map(model, filled(model), IDS, 0)
    slopes = -found.bias[:, 1, 0]
    distances = np.arange(20)[:, None] - np.arange(20)
    seen = np.tri(20, dtype=bool)
    np.testing.assert_allclose(found.bias[:, seen], -slopes[:, None] * distances[seen], rtol=1e-6)
    rotated = build(RoPE)
    assert not attention_map(rotated, filled(rotated), IDS, -1).bias[:, seen].any()


@pytest.mark.ci
def test_a_packed_document_is_read_as_if_it_were_alone():
    """Chunks and log n count the tokens of a document, not those of the row."""
    model = build(Layers(ALiBi, chunk=4, log_n=LogN()))
    params = filled(model)
    segment = np.repeat([1, 2], [5, 15])
    pos = np.concatenate([np.arange(5), np.arange(15)])

    @jax.jit
    def weights(*text: jax.Array) -> jax.Array:
        rows = (x[None] for x in text)
        return layer_attention(model, params, *rows, turn=0, repetition=1).weights[0]

    packed, alone = weights(READ[0], pos, segment), weights(READ[0, 5:], pos[5:], segment[5:])
    np.testing.assert_allclose(packed[:, 5:, 5:], alone, rtol=1e-5, atol=1e-6)


def test_texts_of_similar_lengths_and_all_layers_share_a_program():
    model = build(RoPE)
    params = filled(model)
    programs = [text_probes._logits, text_probes._losses, text_probes._attention]
    for program in programs:
        program.clear_cache()
    for ids in (IDS, IDS[:5], IDS[:0]):
        assert text_logits(model, params, ids).shape == (len(ids) + 1, 32)
        assert text_losses(model, params, ids).shape == (len(ids),)
        for layer in (0, 1, -1):
            assert attention_map(model, params, ids, layer).weights.shape[1] == len(ids) + 1
    assert [program._cache_size() for program in programs] == [1, 1, 1]
    text_logits(model, params, np.tile(IDS, 2))  # of another bucket
    assert programs[0]._cache_size() == 2


@pytest.mark.parametrize("layer", [2, -3])
def test_a_layer_that_is_not_there_is_refused(layer):
    model = build(ALiBi)
    with pytest.raises(UserError, match="it must be from 0 to 1, or from -2 to -1"):
        attention_map(model, {}, IDS, layer)
