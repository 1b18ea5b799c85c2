"""FIRE against Eq. 4 and Appendix E of the paper, written again in numpy float64.

The numpy version is differentiated by complex steps, f(p + ih).imag / h: exact to rounding.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE, log_transform, mlp, normalized_distance

HEADS = 12
# The default threshold at train length 64 is 16: row 0, rows around it, and far beyond.
QUERIES = np.array([0, 1, 2, 15, 16, 17, 63, 64, 200], np.int32)
KEYS = np.array([0, 1, 2, 7, 14, 15, 16, 17, 40, 63, 64, 150, 199, 200], np.int32)
CAUSAL = KEYS[None, :] <= QUERIES[:, None]


class Case(NamedTuple):
    fire: FIRE
    hidden_layers: int
    init_L: float


EQUATION_4 = Case(FIRE(HEADS, 64, 64, 768), 2, 16.0)
APPENDIX_E = Case(FIRE(HEADS, 64, 64, 768, hidden_layers=1, init_L=512.0), 1, 512.0)
CASES = pytest.mark.parametrize("case", [EQUATION_4, APPENDIX_E], ids=["eq4", "appendix_e"])


def equation_4(leaves: dict[str, Any], case: Case, larger=np.maximum) -> np.ndarray:
    """`b[h, i, j] = f(psi(i - j) / psi(max(L, i)))[h]`; real or complex parameters."""

    def absolute(z):
        return z if z.real >= 0 else -z

    i, j = QUERIES.astype(np.float64)[:, None], KEYS.astype(np.float64)[None, :]
    c, L = absolute(leaves["c"]), absolute(leaves["L_multiplier"] * case.init_L)
    normalizer = np.where(larger(i, L.real) == i, i, L)
    psi_normalizer = np.log(c * normalizer + 1) + 1e-6
    h = (np.log(c * np.abs(i - j) + 1) / psi_normalizer)[..., None]
    for layer in range(case.hidden_layers + 1):
        h = h @ leaves[f"mlp/dense_{layer}/kernel"] + leaves[f"mlp/dense_{layer}/bias"]
        if layer < case.hidden_layers:
            h = np.where(h.real > 0, h, 0)
    return np.moveaxis(h, -1, 0)


def numpy_gradient(leaves: dict[str, Any], case: Case, weights: np.ndarray) -> dict[str, Any]:
    """d sum(weights * bias) / d leaf for every number of every leaf."""
    gradient = {}
    for name, value in leaves.items():
        gradient[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            moved = value.astype(np.complex128)
            moved[index] += 1e-30j
            out = equation_4({**leaves, name: moved}, case)
            gradient[name][index] = np.sum(weights * out).imag / 1e-30
    return gradient


def named(tree: Any) -> dict[str, np.ndarray]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(k.key for k in path): np.asarray(v, np.float64) for path, v in flat}


def init(fire: FIRE, **changed: float) -> dict[str, Any]:
    params = fire.init(jax.random.key(3))
    return {**params, **{name: jnp.float32(value) for name, value in changed.items()}}


def bias(fire: FIRE, params: Any) -> jax.Array:
    return fire.bias(params, jnp.asarray(QUERIES)[None], jnp.asarray(KEYS)[None], len(KEYS))[0]


@CASES
def test_values_are_the_equations(case):
    params = init(case.fire)
    ours, paper = np.asarray(bias(case.fire, params)), equation_4(named(params), case)
    np.testing.assert_allclose(ours[:, CAUSAL], paper[:, CAUSAL], rtol=0, atol=1e-6)
    broken = equation_4(named(params), case, larger=np.minimum)  # min(L, i), seen in the wild
    assert np.max(np.abs(ours - broken)[:, CAUSAL]) > 1e-2


@CASES
@pytest.mark.parametrize("c, m", [(0.1, 1.03), (-0.4, -0.7)], ids=["init", "negative"])
def test_gradients_are_the_equations(case, c, m):
    """Also for negative c and m, which count by their absolute value. m avoids the tie i == L."""
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
    """Row i == L (16 at init) takes half of the gradient to L that row i < L takes."""

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

    assert to_L(query=0, m=1.0) == 0.0  # distance 0 alone
    assert np.all(np.isfinite(bias(EQUATION_4.fire, init(EQUATION_4.fire, c=0.0))))  # epsilon
    below, on, above = to_L(16, 1 + 1e-5), to_L(16, 1.0), to_L(16, 1 - 1e-5)
    assert above == 0.0
    assert on == pytest.approx(below / 2, rel=1e-3) and below != 0.0


def test_dense_layers_start_as_in_torch():
    """Kernels and biases uniform in +-1/sqrt(fan_in); Flax's default has zero biases."""
    seeds = [EQUATION_4.fire.init(jax.random.key(seed))["mlp"] for seed in range(32)]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *seeds)
    for layer, fan_in in {"dense_0": 1, "dense_1": 32, "dense_2": 32}.items():
        for leaf in params[layer].values():
            assert np.max(np.abs(leaf)) <= fan_in**-0.5
            assert np.std(leaf) == pytest.approx((3 * fan_in) ** -0.5, rel=0.05)
            assert abs(np.mean(leaf)) < 0.1 * fan_in**-0.5
            assert np.mean(leaf == 0) < 0.01


@CASES
def test_f_is_not_linear_at_the_start(case):
    """It is the biases that bend f: without them, a ReLU MLP of x >= 0 is x * f(1)."""
    x = jnp.linspace(0, 1, 101)

    def bend(params: Any) -> float:
        out = np.asarray(mlp(params, x), np.float64)
        return np.max(np.abs(out - out[0] - np.asarray(x)[:, None] * (out[-1] - out[0])))

    params = init(case.fire)["mlp"]
    bias_free = {name: {**layer, "bias": layer["bias"] * 0} for name, layer in params.items()}
    assert bend(params) > 2e-3
    assert bend(bias_free) < 1e-6


def test_defaults():
    """c = 0.1; L a quarter of the training length; learned numbers as the docstring counts."""
    fire = FIRE(HEADS, 64, 2048, 768)
    params = init(fire)
    assert params["c"] == np.float32(0.1) and params["L_multiplier"] == 1.0
    np.testing.assert_array_equal(
        bias(fire, params), bias(FIRE(HEADS, 64, 2048, 768, init_L=512.0), params)
    )
    assert np.any(bias(fire, params) != bias(FIRE(HEADS, 64, 2048, 768, init_L=2048.0), params))
    assert sum(leaf.size for leaf in named(params).values()) == 1518
    assert sum(leaf.size for leaf in named(init(APPENDIX_E.fire)).values()) == 462
    with pytest.raises(UserError, match="hidden_layers"):
        FIRE(HEADS, 64, 2048, 768, hidden_layers=-1)


def test_rows_up_to_the_threshold_depend_on_distance_alone():
    """Below L = 16 the normaliser is L; beyond, it is the query's own position."""
    params = init(EQUATION_4.fire)

    def at_distance_2(*queries: int) -> np.ndarray:
        q_pos = jnp.array([queries])
        return np.asarray(EQUATION_4.fire.bias(params, q_pos, q_pos - 2, 64))[0].diagonal(0, 1, 2)

    near, far = at_distance_2(3, 9, 16), at_distance_2(16, 17, 64)
    np.testing.assert_array_equal(near, near[:, :1].repeat(3, axis=1))
    assert np.all(far[:, 0] != far[:, 1]) and np.all(far[:, 1] != far[:, 2])


def test_distances_beyond_256_stay_apart():
    """As integers; in bfloat16 the distances 256 and 257 are the same number."""

    def x(dtype: Any) -> jax.Array:
        q_pos, k_pos = jnp.array([[512]], dtype), jnp.array([[255, 256]], dtype)
        return normalized_distance(q_pos, k_pos, log_transform(jnp.float32(0.1)), 512.0, 1e-6)[0, 0]

    assert x(jnp.int32)[0] != x(jnp.int32)[1]
    assert x(jnp.bfloat16)[0] == x(jnp.bfloat16)[1]
