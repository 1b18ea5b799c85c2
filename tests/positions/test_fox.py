"""Forget gates: FoX in two forms, its gradients, its relation to ALiBi, and exact sums."""

import functools
import logging

import jax
import jax.numpy as jnp
import layer_logits as reference
import numpy as np
import pytest
from gin_files import CONFIGS

from fire_lm.attention.decay import cumulative_decay, log_decay_between
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.models import build_decoder, learned_scalars_by_layer, size_tiny
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fox import FoX
from fire_lm.positions.resampling import RandomizedPositions

LEARNED = reference.build(FoX, init_bias=1.0)
BIAS = reference.build(FoX, gates="bias", init_bias=1.0)


def gates(params, scale=1.0):
    """Return the gates f `[T, N]` in float64."""
    z = np.asarray(params["b"], np.float64)[None]
    if "gate_W" in params:
        z = z + reference.contents()[2] @ np.asarray(params["gate_W"], np.float64)
    return 1 / (1 + np.exp(-z)) + np.zeros((reference.LENGTH, 1))


def by_products(params):
    """Return the logits, with each pair's product of gates."""
    f, logits = gates(params), reference.products()
    for n, i, j in zip(*np.nonzero(reference.CAUSAL[None] & np.isfinite(logits)), strict=True):
        logits[n, i, j] += np.log(np.prod(f[j + 1 : i + 1, n]))
    return logits


def as_cable(params):
    """Return CABLE's logits: sums of -softplus of the opposite W and b."""
    y = reference.contents()[2]
    change = -np.log1p(np.exp(y @ -np.asarray(params["gate_W"]) - np.asarray(params["b"])))
    sums = np.cumsum(change, axis=0).T
    return reference.products() + sums[:, :, None] - sums[:, None]


@pytest.mark.parametrize(
    "fox", [LEARNED, pytest.param(BIAS, marks=pytest.mark.ci)], ids=["learned", "bias"]
)
def test_weights_are_multiplied_by_the_gates_between(fox):
    params = reference.drawn(fox)
    reference.check(reference.logits(fox, params), by_products(params))
    ours = functools.partial(reference.logits, fox)
    reference.check_gradients(ours, by_products, params)


def test_cable_is_fox_with_the_opposite_signs():
    params = reference.drawn(LEARNED)
    reference.check(reference.logits(LEARNED, params), as_cable(params))


def test_the_reference_notices_gates_that_are_counted_otherwise():
    params = reference.drawn(LEARNED)
    late = np.roll(np.asarray(reference.logits(LEARNED, params)), 1, axis=2)
    with pytest.raises(AssertionError):
        reference.check(late, by_products(params))


def test_the_first_gate_has_no_effect():
    params = reference.drawn(LEARNED)

    def of_first(change):
        y = jnp.float32(reference.contents()[2])[None].at[0, 0].add(change)
        sums = cumulative_decay(LEARNED.log_decay(params, y))
        return jnp.sum(jnp.where(reference.CAUSAL[None, None], log_decay_between(sums, sums), 0.0))

    assert jax.grad(of_first)(0.0) == 0


def test_fixed_gates_are_alibi():
    fixed, alibi = (
        kind(num_heads=8, head_dim=4, train_length=64, hidden_size=32)
        for kind in (functools.partial(FoX, gates="fixed"), ALiBi)
    )
    assert fixed.init(jax.random.key(0)) == {}
    sums, pos = (
        cumulative_decay(fixed.log_decay({}, jnp.zeros((1, 300, 32)))),
        jnp.arange(300)[None],
    )
    found, expected = log_decay_between(sums, sums)[0], alibi.bias({}, pos, pos, 300)[0]
    causal = np.tri(300, dtype=bool)
    np.testing.assert_allclose(found[:, causal], expected[:, causal], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("gates, size", [("learned", 9_228), ("bias", 12), ("fixed", 0)])
def test_size(gates, size):
    fox = FoX(num_heads=12, head_dim=64, train_length=64, hidden_size=768, gates=gates)
    shapes = jax.eval_shape(fox.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == size


def test_half_lives():
    """With b = 0, a token halves the weights; with 5, it takes about 100 tokens."""
    for bias, tokens in ((0.0, 1.0), (5.0, 103.2)):
        fox = reference.build(FoX, init_bias=bias)
        found = fox.learned_scalars(fox.init(jax.random.key(0)))
        assert list(found) == ["half_life_0", "half_life_1", "half_life_2", "half_life_3"]
        np.testing.assert_allclose(list(found.values()), tokens, rtol=1e-3)
    model = build_decoder(size_tiny(num_layers=2), FoX, 32, 64)
    token = jnp.zeros((1, 1), jnp.int32)
    names = jax.eval_shape(
        lambda rng: learned_scalars_by_layer(model, model.init(rng, token, token)["params"]),
        jax.random.key(0),
    )
    assert {"half_life_0/layer_0", "half_life_0/layer_1"} <= set(names)


def test_positions_do_not_act_on_gates(caplog):
    params, drawn = reference.drawn(LEARNED), np.array([0, 3, 4, 9, 20, 21, 90])
    far, near = (reference.logits(LEARNED, params, pos=pos) for pos in (drawn, None))
    np.testing.assert_array_equal(far, near)
    assert LEARNED.interpolated() is None and not LEARNED.uses_positions
    with caplog.at_level(logging.WARNING):
        build_decoder(size_tiny(), FoX, 32, 64, resampling=RandomizedPositions())
    assert "RandomizedPositions has no effect, because FoX uses no positions" in caplog.text
    caplog.clear()
    build_decoder(size_tiny(), ALiBi, 32, 64, resampling=RandomizedPositions())
    assert caplog.text == ""


def test_an_extension_of_positions_is_refused_for_gates():
    files = [str(CONFIGS / f"{name}.gin") for name in ("runs/quickstart", "positions/fox")]
    with pytest.raises(UserError, match="RoPE"):
        load_experiment(files, ["RoPE.scaling = @YaRN()"])


def test_half_lives_are_positive():
    with pytest.raises(UserError, match="shortest must be above 0"):
        reference.build(FoX, gates="fixed", shortest=0.0)


@pytest.mark.parametrize("gates", ["bias", "learned"])
def test_a_field_without_effect_is_refused(gates):
    with pytest.raises(UserError, match="FoX.longest is 64: it has no effect with .*gates"):
        reference.build(FoX, gates=gates, longest=64.0)
    # Files such as fox_fire.gin set the initial bias of gates that learn.
    reference.build(FoX, gates="fixed", init_bias=5.0)
