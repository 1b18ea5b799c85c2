"""ReLU MLPs as hinges: equal values and gradients, also where there are not enough hinges."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.attention import Layout, Terms, Tokens, attend
from fire_lm.models import build_decoder, size_tiny, token_losses
from fire_lm.positions import fire as fire_module
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fire_formulas import init_mlp, log_transform, mlp, normalized_distance
from fire_lm.positions.piecewise import evaluate, first, hinges, segments

X = jnp.concatenate([jnp.linspace(0, 1, 2001), jnp.float32([1e-6, 1 - 1e-6])])


def draw(hidden_layers, seed, scale=1.0):
    params = init_mlp(jax.random.key(seed), (1, *[32] * hidden_layers, 12))
    return jax.tree.map(lambda leaf: scale * leaf, params)


def bends(params, x):
    """Return where the MLP's slope changes, by brute force in float64 numpy."""
    h = np.asarray(x, np.float64)[:, None]
    for index in range(len(params)):
        layer = params[f"dense_{index}"]
        h = h @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
        h = np.maximum(h, 0) if index < len(params) - 1 else h
    second = np.abs(np.diff(h, 2, axis=0)).max(axis=1)
    return np.asarray(x)[1:-1][second > 1e-9]


WEIGHTS = np.random.default_rng(9).normal(size=(12, len(X))).astype(np.float32)


def differentiated(function):
    def weighted(params, x):
        out = function(params, x)
        return jnp.sum(WEIGHTS * out), out

    return jax.jit(jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True))


by_mlp = differentiated(lambda params, x: mlp(params, x).T)
by_hinges = differentiated(lambda params, x: evaluate(hinges(params, 64)[0], x))


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("hidden_layers", [0, 1, 2, 3])
def test_hinges_are_the_mlp(hidden_layers, scale):
    """Values agree, and so do gradients to every weight and to x."""
    for seed in range(3):
        params = draw(hidden_layers, seed, scale)
        (_, plain), plain_gradient = by_mlp(params, X)
        (_, ours), our_gradient = by_hinges(params, X)
        np.testing.assert_allclose(ours, plain, atol=1e-6 * np.ptp(plain) + 1e-6)
        # On a kink itself, the slope depends on rounding.
        kinks = np.asarray(hinges(params, 64)[0].kink_K)
        away = np.min(np.abs(np.asarray(X)[:, None] - kinks), axis=1) > 1e-5
        for a, b in zip(
            jax.tree.leaves(our_gradient[0]), jax.tree.leaves(plain_gradient[0]), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-4 * np.max(np.abs(b)))
        np.testing.assert_allclose(
            our_gradient[1][away], plain_gradient[1][away], rtol=1e-3, atol=1e-4
        )


def test_the_search_for_kinks_has_no_gradient():
    """Kinks move as the inputs of their units do: searching and sorting are not differentiated."""

    def total(params):
        return sum(jnp.sum(part) for part in hinges(params, 64)[0])

    params = draw(2, 0)
    search, gradient = (str(jax.make_jaxpr(each)(params)) for each in (total, jax.grad(total)))
    assert gradient.count(" sort[") == search.count(" sort[") == 2
    assert gradient.count("scatter") == 0 and gradient.count("gather") == search.count("gather")


@pytest.mark.parametrize("hidden_layers", [1, 2, 3])
def test_kinks_are_where_the_function_bends(hidden_layers):
    params = draw(hidden_layers, 0, scale=2.0)
    f, count = hinges(params, 64)
    kinks = np.asarray(f.kink_K)[: int(count)]
    assert np.all(np.diff(kinks) > 0) and np.all(np.asarray(f.kink_K)[int(count) :] == 1)
    grid = np.linspace(0, 1, 20_001)
    for bend in bends(params, grid):
        assert np.min(np.abs(kinks - bend)) < 2e-4
    assert 5 < count < 64


def test_hinges_reach_as_far_as_asked():
    """Encoders evaluate f beyond 1; hinges up to 1 go on as a straight line there."""
    params, x = draw(2, 0, scale=2.0), 3 * X
    plain = mlp(params, x).T
    (near, fewer), (far, count) = hinges(params, 64), hinges(params, 64, math.inf)
    np.testing.assert_allclose(evaluate(far, x), plain, atol=1e-6 * np.ptp(plain))
    np.testing.assert_allclose(evaluate(far, 1e6 * x), mlp(params, 1e6 * x).T, rtol=1e-4)
    kinks = np.asarray(far.kink_K)
    assert int(fewer) < int(count) and np.all(kinks[int(count) :] == kinks[int(count) - 1] + 1)
    assert np.max(np.abs(evaluate(near, x) - plain)) > 1e-2 * np.ptp(plain)


@pytest.mark.ci
def test_too_few_hinges_are_another_function_and_are_told():
    params = draw(2, 0)
    (few, count), (enough, same) = hinges(params, 8), hinges(params, 64)
    assert int(same) == 17 and int(count) > 8
    plain = mlp(params, X).T
    assert np.max(np.abs(evaluate(few, X) - plain)) > 1e-4
    np.testing.assert_allclose(evaluate(first(enough, 17), X), plain, atol=1e-6)
    assert np.max(np.abs(evaluate(first(enough, 16), X) - plain)) > 1e-7


def test_segments_are_straight_pieces_of_the_same_function():
    f, _ = hinges(draw(2, 1), 32)
    slope, offset = segments(f)
    at = np.searchsorted(np.asarray(f.kink_K), np.asarray(X))
    straight = np.asarray(slope)[at].T * np.asarray(X) + np.asarray(offset)[at].T
    np.testing.assert_allclose(straight, evaluate(f, X), atol=2e-6)


@pytest.mark.ci
@pytest.mark.parametrize("limits", [(1, 2, 4), (1, 2, 64), (16, 32, 64)])
def test_fire_is_exact_whatever_number_of_hinges_it_is_given(limits, monkeypatch):
    """With more kinks than the largest limit, FIRE evaluates the MLP itself and reports it."""
    monkeypatch.setattr(fire_module, "MAX_KINKS", limits)
    fire = FIRE(12, 64, 64, 768)
    params, pos = fire.init(jax.random.key(3)), jnp.arange(200)[None]

    expected = mlp_bias(fire, pos)(params)
    causal = np.tri(200, dtype=bool)  # beyond it x exceeds 1, where the last hinge continues
    found = np.asarray(fire.bias(params, pos, pos, 200))
    np.testing.assert_allclose(found[..., causal], expected[..., causal], atol=1e-6)
    told = fire.diagnostics(params)
    assert told["fire_kinks"] > 4 and bool(told["fire_dense"]) == (limits[-1] == 4)
    reason = fire.explain_nan({name: float(value) for name, value in told.items()})
    wanted = (
        f"FIRE's MLP has {told['fire_kinks']:.0f} kinks in a layer, but the TPU kernel supports"
    )
    assert (reason is not None and reason.startswith(wanted)) == (limits[-1] == 4)

    def loss(params, bias):
        return jnp.sum(jnp.where(causal[None, None], jnp.sin(3 * bias(params)), 0.0))

    ours = jax.grad(lambda p: loss(p, lambda p: fire.bias(p, pos, pos, 200)))(params)
    plain = jax.grad(lambda p: loss(p, mlp_bias(fire, pos)))(params)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * np.max(np.abs(b)))


@pytest.mark.ci
def test_fire_in_blocks_of_hinges_is_fire_by_its_mlp_with_every_logit():
    """Outputs agree with the MLP to 1e-5, gradients to q, k, v and FIRE to 1e-4 of the largest."""
    fire, pos = FIRE(12, 8, 64, 96, init_gamma=0.5), jnp.arange(200)[None]
    q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 200, 12, 8))
    params = {**jax.tree.map(lambda leaf: 3 * leaf, fire.init(jax.random.key(3)))}

    def result(params, q, k, v, hinged):
        prepared = fire.prepare(params)
        plain = {**prepared, "kinks": jnp.int32(10**6)}  # too many, so FIRE uses the MLP itself
        own = prepared if hinged else plain
        terms = Terms(lambda q_pos, k_pos: fire.bias(own, q_pos, k_pos, 200))
        layout = Layout(in_order=hinged, implementation="blockwise" if hinged else "dense")
        out = attend(q, k, v, Tokens(pos), Tokens(pos), terms, layout=layout)
        return jnp.sum(jnp.sin(out)), out

    gradient = jax.jit(
        jax.grad(result, argnums=(0, 1, 2, 3), has_aux=True), static_argnames="hinged"
    )
    (ours, our_out), (oracle, out) = (gradient(params, q, k, v, hinged=h) for h in (True, False))
    np.testing.assert_allclose(our_out, out, atol=1e-5)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(oracle), strict=True):
        # A softmax ignores f's last biases: their gradients are 0 up to rounding.
        np.testing.assert_allclose(a, b, atol=1e-4 * max(0.1, np.max(np.abs(b))))


@pytest.mark.ci
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("share", [False, True])
def test_fire_s_finds_its_hinges_once_a_step(share, remat):
    """Kinks are sorted for all layers together, never inside the scan over layers."""
    model = build_decoder(
        size_tiny(), FIRE, 32, 64, dtype="float32", share_position=share, remat=remat
    )
    tokens, pos = jnp.zeros((1, 8), jnp.int32), jnp.arange(8)[None]
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, pos)["params"]

    def loss(params):
        return token_losses(model, params, tokens, pos)[0].sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params)
    outside = [str(e.primitive) for e in jaxpr.eqns if str(e.primitive) != "scan"]
    inside = [str(e) for e in jaxpr.eqns if str(e.primitive) == "scan"]
    assert not any(" sort[" in text for text in inside)
    assert ("sort" in outside or any("sort[" in str(e) for e in jaxpr.eqns)) and inside


def mlp_bias(fire, pos):
    """Return FIRE's bias from the MLP for every pair, whatever `MAX_KINKS` is."""

    def bias(params):
        x = normalized_distance(
            pos, pos, log_transform(params["c"]), params["L_multiplier"] * 16, 1e-6
        )
        return jnp.moveaxis(mlp(params["mlp"], x), -1, 1)

    return bias
