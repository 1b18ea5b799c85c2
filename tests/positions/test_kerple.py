"""KERPLE's two variants against their formulas in numpy float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.positions import kerple
from fire_lm.positions.kerple import KERPLELog, KERPLEPower

HEADS = 12
VARIANTS = pytest.mark.parametrize("variant", [KERPLELog, KERPLEPower])
# First query and number of queries.
BLOCKS = [(0, 1), (0, 2), (0, 17), (0, 512), (8192, 64), (131_072, 64)]


def formula(variant: type, distance: np.ndarray, p: Any, a: Any) -> np.ndarray:
    """Return the bias `[N, T, S]` without clipping the parameters to their bounds."""
    p, a = (np.asarray(x)[:, None, None] for x in (p, a))
    if variant is KERPLELog:
        return -p * np.log(1 + a * distance)
    return -a * np.where(distance > 0, np.exp(p * np.log(np.maximum(distance, 1))), 0)


def encoding(variant: type, num_heads: int = HEADS) -> Any:
    return variant(num_heads, 8, 64, 96)


def block(first: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    q_pos = first + np.arange(length)
    return q_pos, np.unique(np.concatenate([np.linspace(0, first, 50).astype(int), q_pos]))


def bias(variant: type, params: Any, q_pos: Any, k_pos: Any) -> jax.Array:
    num_heads = len(params["p"])
    q_pos_BT, k_pos_BS = jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None]
    return encoding(variant, num_heads).bias(params, q_pos_BT, k_pos_BS, 64)[0]


def draw(variant: type) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return initial parameters, all within bounds, and p and a in float64."""
    params = encoding(variant).init(jax.random.key(1))
    params = {name: jnp.maximum(leaf, 0.02) for name, leaf in params.items()}
    return params, np.asarray(params["p"], np.float64), np.asarray(params["a"], np.float64)


@VARIANTS
@pytest.mark.parametrize("first, length", BLOCKS)
def test_values_are_the_formula(variant, first, length):
    params, p, a = draw(variant)
    q_pos, k_pos = block(first, length)
    distance = np.abs(q_pos[:, None] - k_pos)
    ours, expected = bias(variant, params, q_pos, k_pos), formula(variant, distance, p, a)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    if length > 1:
        assert not np.allclose(ours, formula(variant, distance, a, p), rtol=1e-2)  # p, a exchanged


@VARIANTS
def test_gradients_are_the_formulas(variant):
    """Gradients are taken by complex steps of the formula; distance 0 is included."""
    params, p, a = draw(variant)
    pos = np.array([0, 1, 2, 40, 513, 2000])
    distance = np.abs(pos[:, None] - pos)
    weights = np.random.default_rng(0).normal(size=(HEADS, 6, 6))
    ours = jax.grad(lambda params: jnp.sum(bias(variant, params, pos, pos) * jnp.float32(weights)))(
        params
    )
    moved = {"p": (p + 1e-30j, a), "a": (p, a + 1e-30j)}
    for name, (p_, a_) in moved.items():
        expected = np.sum(weights * formula(variant, distance, p_, a_).imag / 1e-30, axis=(1, 2))
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4)
        assert np.all(expected != 0)


@VARIANTS
def test_values_outside_the_bounds_count_as_the_bounds(variant):
    """-1 and 0.001 count as the lower bound, and 3 as the upper one, which only the power has."""
    pos = np.arange(20)
    distance = np.abs(pos[:, None] - pos)
    for p, a in [(-1.0, 0.5), (0.001, 0.5), (1.0, -1.0), (1.0, 0.001), (3.0, 0.5), (1.0, 3.0)]:
        params = {"p": jnp.full((1,), p), "a": jnp.full((1,), a)}
        largest = 2.0 if variant is KERPLEPower else np.inf
        inside = [np.clip(p, 0.01, largest)], [max(a, 0.01)]
        expected = formula(variant, distance, *inside)
        np.testing.assert_allclose(bias(variant, params, pos, pos), expected, rtol=1e-5)


def descend(variant: type, name: str, start: float, target: float) -> float:
    """Return where 200 steps of sign descent lead from `start`, fitting the bias at `target`."""
    pos, other = np.arange(20), {"p": "a", "a": "p"}[name]
    fixed = {other: jnp.full((1,), 0.5)}
    goal = bias(variant, {name: jnp.full((1,), target), **fixed}, pos, pos)

    @jax.jit
    def step(_, value):
        def loss(value):
            ours = bias(variant, {name: value, **fixed}, pos, pos)
            return jnp.sum(jnp.square(ours - goal))

        return value - 0.01 * jnp.sign(jax.grad(loss)(value))

    return float(jax.lax.fori_loop(0, 200, step, jnp.full((1,), start))[0])


OUTSIDE = [
    (KERPLELog, "p", -0.5),
    (KERPLELog, "a", -0.5),
    (KERPLEPower, "p", -0.5),
    (KERPLEPower, "a", -0.5),
    (KERPLEPower, "p", 2.2),
]


@pytest.mark.parametrize("variant, name, start", OUTSIDE)
def test_a_parameter_outside_its_bounds_comes_back(variant, name, start, monkeypatch):
    """The straight-through gradient brings it back; with a plain clip it would never move."""
    assert descend(variant, name, start, target=0.8) == pytest.approx(0.8, abs=0.02)

    def plain_clip(x, low, high=np.inf):
        return jnp.clip(x, low, high)

    monkeypatch.setattr(kerple, "clip_straight_through", plain_clip)
    assert descend(variant, name, start, target=0.8) == pytest.approx(start, abs=1e-6)


@VARIANTS
def test_parameters_start_uniform(variant):
    """p is uniform in (0, 2) and a in (0, 1); each has shape `[N]`."""
    seeds = [encoding(variant).init(jax.random.key(seed)) for seed in range(64)]
    for name, high in {"p": 2.0, "a": 1.0}.items():
        drawn = np.stack([params[name] for params in seeds])
        assert drawn.shape == (64, HEADS) and drawn.dtype == np.float32
        assert 0 <= np.min(drawn) < 0.05 * high and 0.95 * high < np.max(drawn) <= high
        assert np.mean(drawn) == pytest.approx(high / 2, rel=0.1)
        assert np.std(drawn) == pytest.approx(high / 12**0.5, rel=0.1)
    p, a = (np.stack([params[name] for params in seeds]).ravel() for name in ("p", "a"))
    assert abs(np.corrcoef(p, a)[0, 1]) < 0.2  # drawn independently
