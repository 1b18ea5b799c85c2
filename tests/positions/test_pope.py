"""PoPE against its formula in float64, in two forms, and its phases beyond the paper's clip."""

import functools

import jax
import jax.numpy as jnp
import layer_logits as reference
import numpy as np
import pytest

from fire_lm.attention import Layout, Tokens, attend
from fire_lm.errors import UserError
from fire_lm.models.layer_table import described_encoding
from fire_lm.positions.fire import FIRE
from fire_lm.positions.pope import PoPE
from fire_lm.positions.together import Together

POPE = reference.build(PoPE)
THETA = 10_000.0 ** (-np.arange(reference.WIDTH) / reference.WIDTH)


def softplus(x):
    return np.log1p(np.exp(x))


def by_cosines(params):
    """Return the logits as a sum of cosines over the dims."""
    q, k, _ = reference.contents()
    delta = np.asarray(params["delta"], np.float64)
    angle = reference.distances()[None, :, :, None] * THETA - delta[:, None, None]
    q, k = (np.moveaxis(softplus(x), 1, 0) for x in (q, k))
    terms = q[:, :, None] * k[:, None] * np.cos(angle)
    return np.sum(terms, axis=-1) / np.sqrt(reference.WIDTH)


def by_complex_numbers(params):
    """Return the logits as the real part of a product of complex queries and keys."""
    q, k, _ = reference.contents()
    turn = np.exp(1j * np.arange(reference.LENGTH)[:, None, None] * THETA)
    q, k = softplus(q) * turn, softplus(k) * turn * np.exp(1j * np.asarray(params["delta"])[None])
    return np.real(np.einsum("tnh,snh->nts", q, np.conj(k))) / np.sqrt(reference.WIDTH)


@pytest.mark.parametrize("expected", [by_cosines, by_complex_numbers])
def test_logits_are_sums_of_cosines(expected):
    params = reference.drawn(POPE, std=2.0)
    reference.check(reference.logits(POPE, params), expected(params))


def test_the_reference_notices_the_opposite_phase():
    params = reference.drawn(POPE, std=2.0)
    with pytest.raises(AssertionError):
        reference.check(reference.logits(POPE, {"delta": -params["delta"]}), by_cosines(params))


def test_phases_learn_on_both_sides_of_0():
    """The paper clips them to [-2 pi, 0], where a clip would return no gradient."""
    for shift in (0.0, 0.1, -7.0):
        params = {"delta": jnp.full((reference.HEADS, reference.WIDTH), shift)}
        ours = functools.partial(reference.logits, POPE)
        reference.check_gradients(ours, by_cosines, params)
    turned = {"delta": reference.drawn(POPE)["delta"] + 2 * np.pi}
    found, expected = (reference.logits(POPE, p) for p in (turned, reference.drawn(POPE)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_at_first_near_keys_have_the_largest_logits():
    """With q = k = 0, the logit at a distance is ln(2)^2 sum cos(d theta) / sqrt(H)."""
    pope = PoPE(num_heads=1, head_dim=64, train_length=64, hidden_size=64)
    zero, pos = jnp.zeros((1, 1, 1, 64)), jnp.array([[1024]])
    expected = {0: 3.84, 8: 2.75, 64: 1.83, 256: 1.23, 1024: 0.79}
    for distance, value in expected.items():
        q, k = pope.rotate(pope.init(jax.random.key(0)), zero, zero, pos, pos - distance, 2048)
        np.testing.assert_allclose(jnp.sum(q * k) / np.sqrt(128), value, atol=0.005)


@pytest.mark.ci
def test_a_bias_is_added_in_the_same_layer():
    both = reference.build(Together, first=FIRE, second=PoPE)
    params = reference.drawn(both)
    bias = reference.logits(both.first, params["first"]) - reference.products()
    reference.check(reference.logits(both, params), bias + by_cosines(params["second"]))


def test_size_and_scalars():
    pope = PoPE(num_heads=12, head_dim=64, train_length=64, hidden_size=768)
    params = pope.init(jax.random.key(0))
    assert params["delta"].size == 768 and not np.any(params["delta"])
    turned = pope.learned_scalars({"delta": params["delta"] - 2 * np.pi + 0.25})
    np.testing.assert_allclose(list(turned.values()), 0.25, rtol=1e-4)
    assert len(pope.periods()) == 64 and described_encoding(pope) == "PoPE"
    with pytest.raises(UserError, match="PoPE.base is 1: it must be above 1"):
        reference.build(PoPE, base=1.0)


def wide(head_dim, implementation):
    """Return attention with queries and keys of twice the width of values."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 256, 2, head_dim))
    pope = PoPE(num_heads=2, head_dim=head_dim, train_length=64, hidden_size=2 * head_dim)
    pos = jnp.arange(256)[None]
    layout = Layout(in_order=True, consecutive=True, implementation=implementation)

    def loss(q, k, v):
        wide_q, wide_k = pope.rotate(pope.init(jax.random.key(0)), q, k, pos, pos, 256)
        out = attend(wide_q, wide_k, v, Tokens(pos), Tokens(pos), layout=layout)
        return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)


@pytest.mark.ci
def test_the_kernel_takes_heads_of_64():
    found, expected = (wide(64, implementation) for implementation in ("tpu", "dense"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, expected)


def test_the_kernel_refuses_heads_of_128_with_the_reason():
    with pytest.raises(
        UserError, match="needs a head dim of 64 or 128 .* not 256 with values of 128"
    ):
        wide(128, "tpu")
