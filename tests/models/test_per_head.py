"""What attention learns for each head: SSMax's factors on log n, sinks, and gates of the output."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import layer_logits as reference
import numpy as np
import pytest
from sample_decoders import by_path, configured, deviation, filled

from fire_lm.attention import Mask
from fire_lm.errors import UserError
from fire_lm.measures.probes import learned_biases
from fire_lm.models import (
    Attention,
    Layers,
    ModelSize,
    build_decoder,
    changes,
    layer_rows,
    learned_scalars_by_layer,
    variant,
)
from fire_lm.models.mixers.attention import PerHead, bias_scale, scaled_tables
from fire_lm.models.mixers.infini import InfiniAttention
from fire_lm.positions.fire import FIRE
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.training.optimizer import decay_mask

SIZE = ModelSize(2, hidden_size=24, num_heads=4, head_dim=6, mlp_size=24, init_std=0.3)
SSMAX = LogN(learned=True)
S_N = np.array([0.1, 0.2, -0.3, 2.0], np.float32)
TOKENS = jnp.arange(1, 13)[None]


def build(position, **settings):
    return build_decoder(SIZE, position, 32, 12, dtype="float32", **settings)


def initial(model):
    token = jnp.zeros((1, 1), jnp.int32)
    return jax.jit(model.init)(jax.random.key(0), token, token)["params"]


def applied(model, params, segment=None):
    pos = jnp.arange(TOKENS.shape[1])[None]
    return np.asarray(jax.jit(model.apply)({"params": params}, TOKENS, pos, segment))


@pytest.mark.parametrize(
    "on, window",
    [
        ("logits", None),
        *(pytest.param(*x, marks=pytest.mark.ci) for x in (("bias", None), ("both", 3))),
    ],
)
def test_ssmax_multiplies_by_s_log_n(on, window):
    """n is the number of keys that a query sees, within the window."""
    fire = reference.build(FIRE)
    params = reference.drawn(fire)
    bias = np.asarray(reference.logits(fire, params), np.float64) - reference.products()
    n_T = np.minimum(np.arange(1, reference.LENGTH + 1), window or reference.LENGTH)
    factor = S_N[:, None, None] * np.log(n_T)[None, :, None]
    expected = reference.products() * (1 if on == "bias" else factor)
    expected = expected + bias * (1 if on == "logits" else factor)
    found = reference.logits(
        *(fire, params),
        mask=Mask(window=window),
        log_n=dataclasses.replace(SSMAX, on=on),
        log_n_N=jnp.asarray(S_N),
    )
    reference.check(found, expected)


def test_ssmax_starts_with_a_mean_factor_of_1():
    """For 1024 tokens, that is 0.1685, near the start of the paper."""
    assert SSMAX.initial_scale(1024) == pytest.approx(0.1685, abs=1e-4)
    place = np.arange(64)
    far, chunk = place[:, None] - place[None], place[:, None] // 9 == place[None] // 9
    for bounds, inside in (
        ({}, far < 64), ({"window": 9}, np.abs(far) < 9), ({"chunk": 9}, chunk),
        ({"window": 4, "chunk": 9}, chunk & (np.abs(far) < 4)),
    ):  # fmt: skip
        for causal in (True, False):
            keys_T = np.sum(inside & (far >= 0) if causal else inside, axis=1)
            s = SSMAX.initial_scale(64, Mask(causal, **bounds))
            factor_1T = SSMAX.factor(jnp.asarray(keys_T)[None], 64)
            np.testing.assert_allclose(s * np.mean(factor_1T), 1, rtol=1e-6)
    infini = build(RoPE, log_n=SSMAX, mixer=InfiniAttention(5))
    start = initial(infini)["layers"]["mixer_log_n"]
    np.testing.assert_allclose(start, SSMAX.initial_scale(12, Mask(chunk=5)), rtol=1e-6)
    assert np.isfinite(SSMAX.initial_scale(64, Mask(window=1)))
    params = initial(build(RoPE, log_n=SSMAX))["layers"]
    np.testing.assert_allclose(params["mixer_log_n"], np.full((2, 4), SSMAX.initial_scale(12)))


@pytest.mark.ci
def test_ssmax_counts_the_keys_of_a_document():
    """A document is read alike alone and packed behind another one."""
    model = build(RoPE, log_n=SSMAX)
    params, segment = filled(model), jnp.asarray([[1] * 5 + [2] * 7])
    pos = jnp.asarray([[*range(5), *range(7)]])
    packed = model.apply({"params": params}, TOKENS, pos, segment)[:, 5:]
    alone = model.apply({"params": params}, TOKENS[:, 5:], jnp.arange(7)[None])
    np.testing.assert_allclose(packed, alone, atol=1e-5)


def test_the_tables_of_a_kernel_are_scaled_like_the_bias():
    fire, pos = reference.build(FIRE), jnp.arange(9)[None]
    params = reference.drawn(fire)
    tables = fire.common_bias(fire.prepare(params), 9, 9)
    scaled = scaled_tables(tables, jnp.asarray(S_N))
    expected = S_N[None, :, None, None] * tables(pos, pos)
    np.testing.assert_allclose(scaled(pos, pos), expected, rtol=1e-5, atol=1e-6)
    assert scaled_tables(tables, None) is tables
    assert bias_scale(SSMAX, PerHead(jnp.asarray(S_N))) is None
    assert bias_scale(LogN(on="both"), PerHead()) is None


@pytest.mark.ci
def test_the_bias_in_figures_has_the_factor_of_its_layer_and_head():
    model = build(FIRE, log_n=LogN(learned=True, on="bias"))
    params = filled(model)

    def drawn(factor_LN):
        layers = {**params["layers"], "mixer_log_n": factor_LN}
        return np.array([
            row.bias for row in learned_biases(
                *(model, {**params, "layers": layers}), run="", encoding="", step=0, queries=(9,)
            )
        ]).reshape(2, 4, -1)  # fmt: skip

    factor_LN = jnp.asarray([S_N, 3 * S_N])
    expected = drawn(jnp.ones((2, 4))) * factor_LN[:, :, None]
    np.testing.assert_allclose(drawn(factor_LN), expected, rtol=1e-5)


def test_learned_factors_are_not_an_option_of_a_sweep():
    plain, ssmax = build(RoPE), build(RoPE, log_n=SSMAX)
    assert variant(plain, build(RoPE, log_n=LogN(clipped=True))) == "log_n-clipped"
    for trained, other in ((plain, ssmax), (ssmax, plain), (ssmax, build(RoPE, log_n=LogN()))):
        with pytest.raises(UserError, match="the model would differ from the trained model: log_n"):
            variant(trained, other)
    with pytest.raises(UserError, match="LogN.clipped and LogN.learned are both True"):
        LogN(clipped=True, learned=True)
    assert str(SSMAX) == "log_n-learned"


def sinks(sink, gate=False):
    return build(Layers(RoPE, mixer=Attention(sink=sink, output_gate=gate)))


@pytest.mark.ci
def test_a_sink_takes_its_share_of_the_weights():
    """In the first layer, a token that sees only itself is scaled by e^x / (e^x + e^sink)."""
    model = sinks(True)
    params, plain = initial(model), initial(sinks(False))
    assert not np.any(params["layers"]["mixer_sink"])
    low = {**params, "layers": {**params["layers"], "mixer_sink": jnp.full((2, 4), -1e4)}}
    expected = applied(sinks(False), plain)
    np.testing.assert_allclose(applied(model, low), expected, atol=1e-5)
    assert np.max(np.abs(applied(model, params) - expected)) > 1e-2
    high = {**params, "layers": {**params["layers"], "mixer_sink": jnp.full((2, 4), 1e4)}}
    found = applied(model, high)  # no attention at all: the output depends on the own token alone
    alone = jax.jit(model.apply)({"params": high}, TOKENS[:, 3:4], jnp.array([[3]]))
    np.testing.assert_allclose(found[:, 3:4], alone, atol=1e-5)


@pytest.mark.ci
def test_an_open_gate_changes_nothing_and_a_closed_one_removes_attention():
    model = sinks(False, gate=True)
    params, plain = initial(model), initial(sinks(False))

    def with_bias(value):
        gate = params["layers"]["mixer_gate"]
        still = {"kernel": 0 * gate["kernel"], "bias": jnp.full_like(gate["bias"], value)}
        return applied(model, {**params, "layers": {**params["layers"], "mixer_gate": still}})

    np.testing.assert_allclose(with_bias(50.0), applied(sinks(False), plain), atol=1e-5)
    np.testing.assert_allclose(
        with_bias(-50.0)[:, 3:4],
        model.apply({"params": {**params, "layers": {**params["layers"], "mixer_gate": {
            "kernel": jnp.zeros((2, 24, 4)), "bias": jnp.full((2, 4), -50.0)}}}},
            TOKENS[:, 3:4], jnp.array([[3]])),
        atol=1e-5,
    )  # fmt: skip


@pytest.mark.ci
def test_gates_sinks_and_ssmax_decode_as_they_read():
    model = configured(
        "rope",
        *("POSITION = [@Layers(), @NoPE]", "Layers.encoding = @FIRE", "Layers.window = 4"),
        *("Layers.mixer = @Attention()", "Attention.sink = True", "Attention.output_gate = True"),
        *("build_decoder.log_n = @LogN()", "LogN.learned = True", "LogN.on = 'both'"),
    )
    assert deviation(model) < 1e-5


def test_only_kernels_decay_and_scalars_have_their_heads_and_layers():
    model = build(Layers(RoPE, mixer=Attention(sink=True, output_gate=True)), log_n=SSMAX)
    params = initial(model)
    decays = by_path(decay_mask(params["layers"]))
    assert decays["mixer_gate/kernel"]
    assert not any(decays[name] for name in ("mixer_gate/bias", "mixer_sink", "mixer_log_n"))
    scalars = learned_scalars_by_layer(model, params)
    names = {f"{name}_{head}/layer_{layer}" for name in ("s", "sink") for head in range(4)
             for layer in range(2)}  # fmt: skip
    assert set(scalars) == names
    turns = build((NoPE, Layers(RoPE, mixer=Attention(sink=True))))
    names = set(learned_scalars_by_layer(turns, filled(turns)))
    assert names == {f"sink_{head}/layer_1" for head in range(4)}


def test_options_of_attention_are_another_model_with_a_name():
    assert changes(sinks(False), sinks(True)) == {"mixer.sink": (False, True)}
    with pytest.raises(UserError, match="mixer.sink False -> True"):
        variant(sinks(False), sinks(True))
    assert build(Layers(RoPE, mixer=Attention())) == build(RoPE)
    gated = sinks(True, gate=True)
    (row,) = layer_rows(gated, jax.eval_shape(functools.partial(initial, gated)))
    assert row[2] == "sink, output gate"
