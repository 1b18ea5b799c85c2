"""A model's biases and attention scores against a forward pass of the complete model."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.measures.probes import attention_scores, interpolated, learned_biases, sampled_keys
from fire_lm.models import Layers, ModelSize, build_decoder, build_encoder, query_logits, variant
from fire_lm.positions.alibi import ALiBi, alibi_slopes
from fire_lm.positions.fire import FIRE
from fire_lm.positions.kerple import KERPLELog
from fire_lm.positions.learned import Learned
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import DynamicNTK, PositionInterpolation
from fire_lm.positions.sandwich import Sandwich
from fire_lm.positions.sinusoidal import Sinusoidal
from fire_lm.positions.t5 import T5
from fire_lm.positions.xpos import XPos

SIZE = ModelSize(2, hidden_size=16, num_heads=4, head_dim=6, mlp_size=32, init_std=0.3)
TRAIN_LENGTH, LENGTH = 8, 20
TOKENS = np.random.default_rng(1).integers(0, 32, LENGTH)
SMALL_FIRE = functools.partial(FIRE, width=4, hidden_layers=1)
SMALL_T5 = functools.partial(T5, num_buckets=8, max_distance=16)
NAMES = {"run": "a_run", "encoding": "its_name", "step": 7}


def build(*kinds, layers=2, **settings):
    position = kinds[0] if len(kinds) == 1 else kinds
    size = dataclasses.replace(SIZE, num_layers=layers)
    settings = {"dtype": "float32", "attention": "dense"} | settings
    return build_decoder(size, position, 32, TRAIN_LENGTH, **settings)


def filled(model):
    tokens = jax.ShapeDtypeStruct((1, 4), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.float32(rng.normal(0, 0.3, leaf.shape)), shapes)


def layer_norm(x, own):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * own["scale"] + own["bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def of_layer(model, params, layer):
    """Return the layer's own parameters, taken from the tree without the library."""
    turns = len(model.encodings)
    layers = params["layers"] if turns == 1 else params["layers"][f"block_{layer % turns}"]
    return jax.tree.map(lambda leaf: np.float64(leaf[layer // turns]), layers)


def silenced(model, params, layer, name):
    """Zero the Linear `name` of one layer, so that it adds nothing to the residual stream."""
    turns = len(model.encodings)
    block = params["layers"] if turns == 1 else params["layers"][f"block_{layer % turns}"]
    for leaf in block[name].values():
        leaf[layer // turns] = 0.0


def softmax(score_NS):
    weights_NS = np.exp(score_NS - score_NS.max(axis=1, keepdims=True))
    return weights_NS / weights_NS.sum(axis=1, keepdims=True)


def scores(model, params, layer, query):
    """Return the scores of all heads, `[N, S]`; rows of `attention_scores` are compared below."""
    ask = functools.partial(query_logits, model, layer=layer, query=query)
    tokens_BT = jnp.asarray(TOKENS, jnp.int32)[None]
    return np.asarray(jax.jit(ask)(params, tokens_BT))[0]


# (encodings, settings, layer whose scores are taken)
MODELS = {
    "fire": ((SMALL_FIRE,), {}, 0),
    "fire_s": ((SMALL_FIRE,), {"share_position": True}, 1),
    "fire_g": ((functools.partial(SMALL_FIRE, init_gamma=0.5),), {}, 0),
    "alibi": ((ALiBi,), {}, 0),
    "alibi_pi": ((functools.partial(ALiBi, interpolate=True),), {}, 0),
    "rope": ((RoPE,), {}, 0),
    "rope_ntk": ((functools.partial(RoPE, scaling=DynamicNTK()),), {}, 0),
    "t5": ((SMALL_T5,), {"share_position": True}, 0),
    "xpos": ((XPos,), {}, 0),
    "sinusoidal": ((Sinusoidal,), {"share_position": True}, 0),
    "learned": ((functools.partial(Learned, max_length=LENGTH),), {"share_position": True}, 0),
    "log_n": ((ALiBi,), {"log_n": LogN()}, 0),
    "log_n_on_both": ((SMALL_T5,), {"log_n": LogN(on="both")}, 0),
    "turns": ((NoPE, SMALL_T5), {}, 1),
    "turns_that_share": ((NoPE, SMALL_T5), {"share_position": True}, 1),
    "windows": ((Layers(NoPE, chunk=7), Layers(ALiBi, window=6, log_n=LogN(on="both"))), {}, 1),
}


QUICKLY = ("fire", "rope", "log_n_on_both", "turns_that_share")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.ci) for name in MODELS],
)
def test_softmax_of_the_scores_is_the_attention_of_the_whole_model(name):
    """The model's logits for a query equal those computed in numpy from the scores.

    The layer whose scores are taken contributes only its attention, the one below only its MLP, and
    the one above nothing.
    """
    kinds, settings, layer = MODELS[name]
    model = build(*kinds, **settings)
    params, query = filled(model), LENGTH - 1
    silent = {(layer, "mlp_out"), (1 - layer, "attention_out")}
    for of, linear in silent | ({(1, "mlp_out")} if layer == 0 else set()):
        silenced(model, params, of, linear)
    tokens_BT, pos_BT = jnp.asarray(TOKENS, jnp.int32)[None], jnp.arange(LENGTH)[None]
    whole = jax.jit(model.apply)({"params": params}, tokens_BT, pos_BT)

    x_TD = np.float64(params["embedding"])[TOKENS]
    position = jax.tree.map(jnp.asarray, params.get("position", {}))
    embedded = model.encodings[0].embed(position, jnp.float32(x_TD)[None], pos_BT)
    x_TD = np.float64(embedded[0])
    if layer == 1:
        below = of_layer(model, params, 0)
        hidden = layer_norm(x_TD, below["mlp_norm"]) @ below["mlp_in"]["kernel"]
        hidden = gelu(hidden + below["mlp_in"]["bias"])
        x_TD = x_TD + hidden @ below["mlp_out"]["kernel"] + below["mlp_out"]["bias"]
    own = of_layer(model, params, layer)
    value, out = own["value"], own["attention_out"]
    y_TD = layer_norm(x_TD, own["attention_norm"])
    v_SNH = np.einsum("SD,DNH->SNH", y_TD, value["kernel"]) + value["bias"]
    weights_NS = softmax(scores(model, params, layer, query))
    y_NH = np.einsum("NS,SNH->NH", weights_NS, v_SNH)
    x_D = x_TD[query] + np.einsum("NH,NHD->D", y_NH, out["kernel"]) + out["bias"]
    expected_V = layer_norm(x_D, params["final_norm"]) @ np.float64(params["embedding"]).T
    np.testing.assert_allclose(whole[0, query], expected_V, atol=1e-5)
    assert np.ptp(weights_NS, axis=1).min() > 0.01  # an error would be noticed


def test_scores_of_a_query_before_the_last():
    """No later token matters, except to encodings that depend on the length of the input."""
    model = build(SMALL_FIRE)
    params = filled(model)
    found = scores(model, params, 0, 9)
    names = {**NAMES, "variant": ""}
    rows = attention_scores(model, params, TOKENS[:10], **names)  # head -1, last token
    assert {(row.layer, row.head, row.query) for row in rows} == {(0, 3, 9)}
    np.testing.assert_allclose([row.score for row in rows], found[-1], atol=1e-5)


@pytest.mark.ci
def test_keys_beyond_a_window_or_chunk_are_not_shown():
    """Query 22 sees the 9 keys from 14 on, or the 3 keys of its chunk from 20 on."""
    for layers, first in ((Layers(ALiBi, window=9, log_n=LogN(on="bias")), 14),
                          (Layers(ALiBi, chunk=10, log_n=LogN(on="bias")), 20)):  # fmt: skip
        model = build(layers)
        params = filled(model)
        found = by_place(learned_biases(model, params, **NAMES, queries=(23,)))
        assert {key for _, _, _, key in found} == set(range(first, 23))
        farthest = -alibi_slopes(4)[1] * (22 - first) * math.log(23 - first) / math.log(8)
        assert found[0, 22, 1, first] == pytest.approx(farthest, rel=1e-5)
        text = np.tile(TOKENS, 2)[:23]
        rows = attention_scores(model, params, text, **NAMES, variant="", bins=5)
        assert (rows[0].first_key, rows[-1].last_key) == (first, 22)
        assert np.isfinite([row.least for row in rows]).all()


def test_bins_of_neighbouring_keys():
    model = build(ALiBi)
    params = filled(model)
    score_S = scores(model, params, 0, LENGTH - 1)[2]
    rows = attention_scores(model, params, TOKENS, **NAMES, variant="pi", head=2, bins=6)
    assert rows[0].run == "a_run" and rows[0].variant == "pi" and rows[0].step == 7
    edges = [(row.first_key, row.last_key) for row in rows]
    assert edges == [(0, 3), (4, 7), (8, 10), (11, 13), (14, 16), (17, 19)]
    for row in rows:
        of_bin = score_S[row.first_key : row.last_key + 1]
        found = [row.score, row.least, row.largest]
        np.testing.assert_allclose(found, [of_bin.mean(), of_bin.min(), of_bin.max()], rtol=1e-5)


def test_scores_beyond_training_are_those_of_interpolated_positions():
    """ALiBi's bias is 8/20 of the original; RoPE's positions become 0, 0.4, 0.8, ..."""
    model = build(ALiBi)
    params = filled(model)
    content = scores(build(NoPE), params, 0, LENGTH - 1)
    plain, squeezed = (scores(one, params, 0, LENGTH - 1) for one in (model, interpolated(model)))
    np.testing.assert_allclose(squeezed - content, (plain - content) * 0.4, atol=1e-5)
    distance_S = LENGTH - 1 - np.arange(LENGTH)
    expected = -alibi_slopes(4)[:, None] * distance_S
    np.testing.assert_allclose(plain - content, expected, atol=1e-5)


INTERPOLATED = {
    "alibi": ((ALiBi,), "interpolate"),
    "rope": ((RoPE,), "pi"),
    "turns": ((RoPE, NoPE), "pi"),
    "turns_of_two": ((RoPE, ALiBi), "pi+interpolate"),
}


@pytest.mark.parametrize("kinds, label", INTERPOLATED.values(), ids=INTERPOLATED)
def test_interpolation_is_a_change_at_evaluation(kinds, label):
    model = build(*kinds)
    changed = interpolated(model)
    assert variant(model, changed) == label
    assert interpolated(changed) is None, "it is on already"


@pytest.mark.parametrize(
    "kind", [FIRE, T5, KERPLELog, NoPE, XPos, functools.partial(RoPE, scaling=DynamicNTK())]
)
def test_no_interpolation_where_none_is_known_or_something_else_is_on(kind):
    assert interpolated(build(kind)) is None


def test_interpolated_rope_divides_by_how_much_longer_the_input_is():
    (rope,) = interpolated(build(RoPE)).encodings
    assert rope.scaling == PositionInterpolation()
    np.testing.assert_allclose(
        rope.frequencies(20)[0], build(RoPE).encodings[0].frequencies(20)[0] * 8 / 20
    )


@functools.partial(jax.jit, static_argnums=(0, 2))
def all_biases(encoding, params, query):
    """Return a query's bias `[N, S]` for all keys that it sees."""
    q_pos, k_pos = jnp.array([[query]]), jnp.arange(query + 1)[None]
    return encoding.bias(params, q_pos, k_pos, query + 1)[0, :, 0]


def by_place(rows):
    assert all((row.run, row.encoding, row.step) == ("a_run", "its_name", 7) for row in rows)
    found = {(row.layer, row.query, row.head, row.key): row.bias for row in rows}
    assert len(found) == len(rows)
    return found


# (encodings, settings, layer -> where its parameters are: a name at the top, or (turn, index))
BIASED = {
    "fire": ((SMALL_FIRE,), {}, {0: (None, 0), 1: (None, 1), 2: (None, 2), 3: (None, 3)}),
    "fire_s": ((SMALL_FIRE,), {"share_position": True}, {0: "position"}),
    "fire_and_rope": ((SMALL_FIRE, RoPE), {}, {0: (0, 0), 2: (0, 1)}),
    "turns_that_share": (
        (NoPE, SMALL_FIRE, SMALL_T5, SMALL_FIRE),
        {"share_position": True},
        {1: "position_1", 2: "position_2"},
    ),
    "kerple": ((RoPE, KERPLELog), {}, {1: (1, 0), 3: (1, 1)}),
    "alibi_pi": ((functools.partial(ALiBi, interpolate=True),), {}, {0: "position"}),
    "sandwich": ((Sandwich,), {}, {0: "position"}),
}


@pytest.mark.parametrize("kinds, settings, layers", BIASED.values(), ids=BIASED)
def test_biases_are_those_of_each_layer(kinds, settings, layers):
    model = build(*kinds, layers=4, **settings)
    params = filled(model)
    found = by_place(learned_biases(model, params, **NAMES, queries=(5, 33), points=6))
    assert {(layer, query) for layer, query, _, _ in found} == {
        (layer, query) for layer in layers for query in (4, 32)
    }
    for layer, place in layers.items():
        if isinstance(place, str):
            own = params.get(place, {})
        else:
            turn, index = place
            block = params["layers"] if turn is None else params["layers"][f"block_{turn}"]
            own = jax.tree.map(lambda leaf, index=index: leaf[index], block["position"])
        encoding = model.encodings[layer % len(kinds)]
        for query in (4, 32):
            expected_NS = all_biases(encoding, own, query)
            for key in (0, 1, query) if query == 4 else (0, query):
                ours = [found[layer, query, head, key] for head in range(SIZE.num_heads)]
                np.testing.assert_allclose(ours, expected_NS[:, key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [SMALL_FIRE, KERPLELog])
def test_biases_of_encoders_are_those_of_earlier_keys(kind):
    decoder = build(kind, log_n=LogN(on="bias"))
    params = filled(decoder)
    ours = by_place(learned_biases(build_encoder(decoder), params, **NAMES, queries=(5, 33)))
    causal = by_place(learned_biases(decoder, params, **NAMES, queries=(5, 33)))
    assert ours == pytest.approx(causal, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("on, factor", [("logits", 1.0), ("bias", 1.5), ("both", 1.5)])
def test_log_n_scales_the_bias_where_it_is_asked_to(on, factor):
    """Query 22 sees 23 keys, slightly more than 8^1.5: a factor of about 1.5. ALiBi is linear."""
    model = build(ALiBi, log_n=LogN(on=on))
    found = by_place(learned_biases(model, filled(model), **NAMES, queries=(23,)))
    expected = -alibi_slopes(4)[1] * 22 * (math.log(23) / math.log(8) if factor > 1 else 1)
    assert found[0, 22, 1, 0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kinds", [(NoPE,), (RoPE,), (RoPE, RoPE), (XPos,)])
def test_no_biases_without_a_bias(kinds):
    model = build(*kinds)
    assert learned_biases(model, filled(model), **NAMES) == []


def test_sampled_keys_reach_from_the_query_to_the_oldest_and_thin_out():
    np.testing.assert_array_equal(sampled_keys(0, 64), [0])
    np.testing.assert_array_equal(sampled_keys(63, 64), np.arange(64))
    for query in (64, 127, 8191):
        keys = sampled_keys(query, 64)
        assert (keys[0], keys[-1], keys[-2]) == (0, query, query - 1)
        assert 32 < len(keys) <= 64
        gaps = -np.diff(keys[::-1])  # from the query backwards
        assert np.all(gaps > 0) and gaps[-1] == gaps.max() > query / 30
        assert np.all(gaps[:5] <= 2)
