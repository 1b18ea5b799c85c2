"""Dropout: what it drops and where, and that its masks depend on seed and step only."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sample_decoders import filled

from fire_lm.attention import Layout, Tokens, attend
from fire_lm.data.batches import text_weights
from fire_lm.errors import UserError
from fire_lm.models import Decoder, ModelSize, build_decoder
from fire_lm.models.dropout import DROPOUT, drop, drop_values
from fire_lm.positions.nope import NoPE
from fire_lm.training.step import init_state, train_step

SIZE = ModelSize(2, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)
TOKENS = np.random.default_rng(0).integers(1, 32, (4, 16)).astype(np.int32)
NEARLY_ALL = 1 - 1e-7  # drops every entry that a test draws


def built(position: Any = NoPE, **settings: Any) -> Decoder:
    return build_decoder(SIZE, position, 32, 16, dtype="float32", **settings)


def logits(model: Decoder, params: Any, seed: int | None = None) -> np.ndarray:
    rngs = None if seed is None else {DROPOUT: jax.random.key(seed)}
    apply = jax.jit(lambda params: model.apply({"params": params}, TOKENS, POS, rngs=rngs))
    return np.asarray(apply(params))


POS = jnp.arange(16)[None]


def test_entries_are_dropped_at_the_rate_and_the_others_scaled():
    x = jnp.full((200, 500), 3.0)
    out = np.asarray(drop(x, 0.25, jax.random.key(0)))
    assert set(np.unique(out)) == {0.0, 4.0}
    assert np.mean(out == 0) == pytest.approx(0.25, abs=0.005)
    assert drop(jnp.ones(3, jnp.bfloat16), 0.5, jax.random.key(0)).dtype == jnp.bfloat16


def test_dropped_values_are_dropped_attention_weights():
    """Each example, key and head has one draw; compare with attention written out."""
    rng = np.random.default_rng(1)
    q, k, v = (jnp.float32(rng.normal(size=(2, 16, 4, 8))) for _ in range(3))
    dropped = drop_values(v, 0.5, jax.random.key(3))
    keep_BSN = np.any(np.asarray(dropped) != 0, axis=-1)
    assert 0.3 < keep_BSN.mean() < 0.7
    weights_BNTS = np.exp(np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(8))
    weights_BNTS *= np.tri(16)
    weights_BNTS /= weights_BNTS.sum(-1, keepdims=True)
    weights_BNTS *= 2.0 * np.moveaxis(keep_BSN, 2, 1)[:, :, None]
    expected = np.einsum("bnts,bsnh->btnh", weights_BNTS, v)
    for implementation in ("dense", "blockwise"):
        layout = Layout(implementation=implementation)
        ours = attend(q, k, dropped, Tokens(POS), Tokens(POS), layout=layout)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_nothing_is_dropped_without_random_bits():
    model = built(dropout=0.5, attention_dropout=0.5)
    params = filled(model)
    np.testing.assert_array_equal(logits(model, params), logits(built(), params))
    assert np.any(logits(model, params, 0) != logits(model, params, 1))


def test_it_acts_on_embedding_attention_and_mlp():
    """If everything is dropped, only the bias of the last norm remains for any text."""
    model = built(dropout=NEARLY_ALL)
    params = filled(model)
    alone = params["final_norm"]["bias"] @ params["embedding"].T
    np.testing.assert_allclose(logits(model, params, 0), np.broadcast_to(alone, (4, 16, 32)), 1e-4)


def test_attention_dropout_acts_on_the_weights_alone():
    """If all weights are dropped, the layers compute the same as with values of 0."""
    model = built(attention_dropout=NEARLY_ALL)
    params = filled(model)
    value = jax.tree.map(jnp.zeros_like, params["layers"]["value"])
    without = {**params, "layers": {**params["layers"], "value": value}}
    np.testing.assert_allclose(logits(model, params, 0), logits(built(), without), atol=1e-5)


def losses(model: Decoder, steps: list[int], **settings: Any) -> list[float]:
    optimizer = optax.sgd(0.0)
    state = init_state(model, optimizer, jax.random.key(0))
    step = jax.jit(
        functools.partial(
            train_step, model=model, optimizer=optimizer, z_loss=0.0, microbatches=1, **settings
        )
    )
    batch = {"targets": TOKENS, "weights": text_weights(TOKENS)}
    return [
        float(step(dataclasses.replace(state, step=jnp.int32(s)), batch)[1]["loss"]) for s in steps
    ]


@pytest.mark.ci
def test_masks_follow_the_seed_and_the_step():
    model = built(dropout=0.3)
    first, again, second = losses(model, [0, 0, 1], seed=0)
    assert first == again != second
    assert losses(model, [0], seed=1)[0] not in (first, second)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(name, rate):
    with pytest.raises(UserError, match=f"build_decoder.{name} is"):
        built(**{name: rate})
