"""FIRE against Eq. 4 and Appendix E of the paper, written again in numpy (fire_reference.py)."""

import ast
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fire_reference import (
    APPENDIX_E,
    CAUSAL,
    EQUATION_4,
    HEADS,
    KEYS,
    PAPER,
    QUERIES,
    Case,
    bias,
    equation_4,
    init,
    named,
    numpy_gradient,
    variant,
)

from fire_lm.errors import UserError
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fire_formulas import ACTIVATIONS, mlp
from fire_lm.positions.kerple import KERPLELog, KERPLEPower
from fire_lm.positions.nope import NoPE
from fire_lm.positions.t5 import T5

CASES = pytest.mark.parametrize("case", PAPER.values(), ids=PAPER)


@CASES
def test_values_are_the_equations(case):
    params = init(case.fire)
    ours, paper = np.asarray(bias(case.fire, params)), equation_4(named(params), case)
    np.testing.assert_allclose(ours[:, CAUSAL], paper[:, CAUSAL], rtol=0, atol=1e-6)
    if case.fire.threshold:
        broken = equation_4(named(params), case, larger=np.minimum)  # min(L, i), a known mistake
        assert np.max(np.abs(ours - broken)[:, CAUSAL]) > 1e-2


def test_an_epsilon_that_counts_is_in_the_bias_and_in_its_tables():
    """At the default of 1e-6, a missing epsilon would not be noticed."""
    case = Case(variant(epsilon=0.5, init_gamma=0.7))
    params = init(case.fire)
    pos = jnp.asarray(QUERIES)[None], jnp.asarray(KEYS)[None]
    tables = case.fire.common_bias(params, 201, 201)
    paper = equation_4(named(params), case)[:, CAUSAL]
    for ours in (bias(case.fire, params), tables(*pos)[0]):
        np.testing.assert_allclose(np.asarray(ours)[:, CAUSAL], paper, rtol=0, atol=1e-5)
    small = equation_4(named(params), Case(variant(init_gamma=0.7)))[:, CAUSAL]
    assert np.max(np.abs(small - paper)) > 1e-2


@pytest.mark.ci
@CASES
@pytest.mark.parametrize(
    "length, first, tolerance",
    [(17, 0, 1e-5), (512, 0, 1e-5), (64, 8_192, 1e-5), (64, 131_072, 1e-4)],
)
def test_values_at_all_lengths_and_offsets(case, length, first, tolerance):
    """The error, relative to the range, is small for blocks of queries from position `first` on.

    The keys start at position 0.
    """
    params = init(case.fire)
    queries = np.arange(first, first + length)
    keys = np.unique(np.r_[0:length, first // 2, first : first + length])
    ours = np.asarray(
        case.fire.bias(params, jnp.asarray(queries)[None], jnp.asarray(keys)[None], len(keys))[0]
    )
    paper = equation_4(named(params), case, queries=queries, keys=keys)
    causal = keys[None] <= queries[:, None]
    ours, paper = ours[:, causal], paper[:, causal]
    ranges = np.ptp(paper, axis=1, keepdims=True)
    ranges[ranges == 0] = 1.0  # a head that its last ReLU turned off
    assert np.max(np.abs(ours - paper) / ranges) < tolerance


@pytest.mark.parametrize(
    "case, c, m",
    [*((case, 0.1, 1.03) for case in PAPER.values()), (EQUATION_4, -0.4, -0.7)],
    ids=[*PAPER, "eq4-negative"],
)
def test_gradients_are_the_equations(case, c, m):
    """Negative c and m count by their absolute values; m avoids the tie i == L."""
    params = init(case.fire, c=c, L_multiplier=m)
    weights = np.random.default_rng(0).uniform(1, 2, (HEADS, *CAUSAL.shape)) * CAUSAL
    gradient = jax.grad(lambda p: jnp.sum(bias(case.fire, p) * jnp.float32(weights)))(params)
    ours, paper = named(gradient), numpy_gradient(named(params), case, weights)
    assert ours.keys() == paper.keys() == named(params).keys()
    for name in ours:
        scale = np.max(np.abs(paper[name]))
        assert scale > 0, name
        np.testing.assert_allclose(ours[name], paper[name], atol=1e-4 * scale, err_msg=name)


def test_gradient_is_finite_at_distance_zero_and_on_the_threshold():
    """Row i == L (16 at init) has half of the gradient to L that rows i < L have."""

    @jax.jit
    def gradient(params, query):
        def total(params):
            q_pos, k_pos = query[None, None], jnp.minimum(jnp.arange(17), query)[None]
            return jnp.sum(EQUATION_4.fire.bias(params, q_pos, k_pos, 17))

        return jax.grad(total)(params)

    def to_L(query: int, m: float) -> float:
        leaves = named(gradient(init(EQUATION_4.fire, L_multiplier=m), jnp.int32(query)))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves.values())
        return float(leaves["L_multiplier"])

    assert to_L(query=0, m=1.0) == 0.0  # only distance 0
    assert np.all(np.isfinite(bias(EQUATION_4.fire, init(EQUATION_4.fire, c=0.0))))  # by epsilon
    below, on, above = to_L(16, 1 + 1e-5), to_L(16, 1.0), to_L(16, 1 - 1e-5)
    assert above == 0.0
    assert on == pytest.approx(below / 2, rel=1e-3) and below != 0.0


def test_dense_layers_start_as_in_torch():
    """Kernels and biases are uniform in +-1/sqrt(fan_in); Flax's default has zero biases."""
    seeds = [EQUATION_4.fire.init(jax.random.key(seed))["mlp"] for seed in range(32)]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *seeds)
    for layer, fan_in in {"dense_0": 1, "dense_1": 32, "dense_2": 32}.items():
        for leaf in params[layer].values():
            assert np.max(np.abs(leaf)) <= fan_in**-0.5
            assert np.std(leaf) == pytest.approx((3 * fan_in) ** -0.5, rel=0.05)
            assert abs(np.mean(leaf)) < 0.1 * fan_in**-0.5
            assert np.mean(leaf == 0) < 0.01


@pytest.mark.parametrize("case", [EQUATION_4, APPENDIX_E], ids=["eq4", "appendix_e"])
def test_f_is_not_linear_at_the_start(case):
    """The biases bend f: without them, a ReLU MLP of x >= 0 is x * f(1)."""
    x = jnp.linspace(0, 1, 101)

    def bend(params: Any) -> float:
        out = np.asarray(mlp(params, x), np.float64)
        return np.max(np.abs(out - out[0] - np.asarray(x)[:, None] * (out[-1] - out[0])))

    params = init(case.fire)["mlp"]
    bias_free = {name: {**layer, "bias": layer["bias"] * 0} for name, layer in params.items()}
    assert bend(params) > 2e-3
    assert bend(bias_free) < 1e-6


def test_defaults():
    """c is 0.1, L a quarter of the training length, and the docstring's counts are right."""
    fire = FIRE(HEADS, 64, 2048, 768)
    params = init(fire)
    assert params["c"] == np.float32(0.1) and params["L_multiplier"] == 1.0
    np.testing.assert_array_equal(
        bias(fire, params), bias(FIRE(HEADS, 64, 2048, 768, init_L=512.0), params)
    )
    assert np.any(bias(fire, params) != bias(FIRE(HEADS, 64, 2048, 768, init_L=2048.0), params))
    counts = {
        name: sum(leaf.size for leaf in named(init(case.fire)).values())
        for name, case in PAPER.items()
    }
    assert counts["eq4"] == 1518 and counts["appendix_e"] == 462 and counts["fire_g"] == 1519
    assert counts["eq22"] == counts["fixed"] == 1517 and counts["eq21"] == 1516
    with pytest.raises(UserError, match="hidden_layers"):
        FIRE(HEADS, 64, 2048, 768, hidden_layers=-1)
    for epsilon in (0.0, 1e-46):
        with pytest.raises(UserError, match="FIRE.epsilon is .*, which is 0 in float32: without a"):
            variant(threshold=False, epsilon=epsilon)
    with pytest.raises(UserError, match="init_gamma needs FIRE.threshold"):
        variant(threshold=False, init_gamma=1.0)


def test_gelu_is_the_approximation_and_the_exact_one_is_there():
    x = np.linspace(-4, 4, 81)
    exact = np.array([v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    np.testing.assert_allclose(ACTIVATIONS["gelu_exact"](jnp.float32(x)), exact, atol=2e-6)
    assert 1e-4 < np.max(np.abs(ACTIVATIONS["gelu"](jnp.float32(x)) - exact)) < 1e-3


@pytest.mark.ci
@pytest.mark.parametrize("encoding, init_c, allowed", [(KERPLELog, 1.0, 1e-3), (ALiBi, 0.01, 1e-3)])
@pytest.mark.parametrize("hidden_layers", [1, 2, 3])
def test_warm_start_is_the_other_encoding_up_to_the_training_length(
    encoding, init_c, allowed, hidden_layers
):
    """Each head differs by at most `allowed` times the range, and the random units can learn."""
    fire = variant(init_as=encoding, init_c=init_c, hidden_layers=hidden_layers)
    assert fire.init_L == 64.0 and fire == variant(
        init_as=encoding, init_c=init_c, hidden_layers=hidden_layers
    )
    rng, pos = jax.random.key(5), jnp.arange(65)[None]
    params, target_params = fire.init(rng), fire.init_as.init(rng)
    ours = np.asarray(fire.bias(params, pos, pos, 64))[0][:, np.tri(65, dtype=bool)]
    wanted = fire.init_as.bias(target_params, pos, pos, 64)[0][:, np.tri(65, dtype=bool)]
    gap = np.max(np.abs(ours - wanted), axis=1) / np.ptp(wanted, axis=1)
    assert np.max(gap) < allowed, gap
    assert fire.warm_start_gap(rng) == pytest.approx(np.max(gap), rel=0.05, abs=1e-6)
    cold = variant(hidden_layers=hidden_layers)
    assert jax.tree.map(jnp.shape, cold.init(rng)) == jax.tree.map(jnp.shape, params)
    gradient = jax.grad(lambda p: jnp.sum(jnp.sin(fire.bias(p, pos, pos, 64))))(params)
    last_hidden = gradient["mlp"][f"dense_{hidden_layers - 1}"]["kernel"]
    assert np.mean(np.asarray(last_hidden) != 0) > 0.4


def itself(num_heads: int, head_dim: int, train_length: int, hidden_size: int) -> FIRE:
    """Return what `FIRE.init_as = @FIRE` gives in gin, where the inner FIRE has that setting."""
    return FIRE(num_heads, head_dim, train_length, hidden_size, init_as=itself)


@pytest.mark.parametrize(
    "setting, value",
    [("width", 0), ("epsilon", -1.0), ("init_c", 0.0), ("init_c", -1.0), ("init_L", 0.0),
     ("init_L", float("nan"))],
)  # fmt: skip
def test_settings_without_a_value_are_refused(setting, value):
    with pytest.raises(UserError, match=f"FIRE.{setting} is {value}"):
        variant(**{setting: value})


@pytest.mark.parametrize(
    "form, setting, value",
    [("threshold=False", "init_L", 20.0), ("threshold=False", "init_L", "train_length"),
     ("threshold=False", "learn_L", False), ("transform='identity'", "init_c", 1.0),
     ("hidden_layers=0", "width", 16)],
)  # fmt: skip
def test_settings_without_effect_are_refused(form, setting, value):
    name, _, given = form.partition("=")
    other = {name: ast.literal_eval(given)}
    with pytest.raises(
        UserError, match=f"FIRE.{setting} is {value}: it has no effect with FIRE.{name} = {given}"
    ):
        variant(**other, **{setting: value})
    usual = variant(**other)
    assert dataclasses.replace(usual) == usual, "a copy does not set what the original did not"


@pytest.mark.ci
def test_warm_start_needs_a_form_that_can_hold_it():
    for encoding in (NoPE, T5):
        with pytest.raises(
            UserError, match=f"{encoding.__name__} has no bias at positions between"
        ):
            variant(init_as=encoding)
    with pytest.raises(UserError, match="f deviates from KERPLEPower by .* of its range"):
        FIRE(HEADS, 64, 2048, 768, init_as=KERPLEPower)
    with pytest.raises(UserError, match="FIRE.init_as is FIRE itself"):
        itself(HEADS, 64, 64, 768)
    with pytest.raises(UserError, match="FIRE.init_as needs hidden layers"):
        variant(init_as=ALiBi, hidden_layers=0)
    with pytest.raises(UserError, match="FIRE.init_as needs hidden layers"):
        variant(init_as=ALiBi, activation="gelu")


SCALARS = {
    "eq4": {"c": 0.3, "L": 1.5 * 16},
    "appendix_e": {"c": 0.3, "L": 1.5 * 512},
    "eq21": {},
    "eq22": {"c": 0.3},
    "fixed": {"c": 0.3},
    "fire_g": {"c": 0.3, "L": 1.5 * 16, "gamma": -0.7},
}


@pytest.mark.parametrize("name, expected", SCALARS.items(), ids=SCALARS)
def test_learned_numbers_are_those_of_the_equation(name, expected):
    """c and L are reported without the signs of their parameters, gamma with its sign."""
    moved = {"c": -0.3, "L_multiplier": -1.5, "gamma": -0.7}
    fire = PAPER[name].fire
    params = {key: jnp.float32(moved[key]) if key in moved else v for key, v in init(fire).items()}
    found = fire.learned_scalars(params)
    assert list(found) == list(expected)
    for key, value in found.items():
        assert value.shape == () and value.dtype == jnp.float32
        np.testing.assert_allclose(value, expected[key], rtol=1e-6)
