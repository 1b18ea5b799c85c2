"""The linear layer and GeLU with gradients of their own, against JAX's of the plain formulas."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.models.layers import gelu, linear

# Shapes of x, kernel and bias: to heads, from heads, and a plain product.
SHAPES = [
    ((2, 5, 8), (8, 2, 3), (2, 3)),
    ((2, 5, 2, 3), (2, 3, 8), (8,)),
    ((2, 5, 8), (8, 16), (16,)),
]


def drawn(*shapes: tuple[int, ...], dtype: Any = jnp.float32) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32).astype(dtype) for shape in shapes]


def plain(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    return jnp.tensordot(x, kernel, axes=x.ndim - 2) + bias[None, None]


def as_plain(function: Any, shapes: Any) -> None:
    """Outputs and gradients, for one gradient of the output."""
    given = drawn(*shapes)
    (out, pull), (wanted, oracle) = (jax.vjp(f, *given) for f in (function, plain))
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    (d_out,) = drawn(out.shape)
    for ours, theirs in zip(pull(d_out), oracle(d_out), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", SHAPES, ids=["to heads", "from heads", "plain"])
def test_linear_is_the_plain_formula(shapes):
    as_plain(linear, shapes)


def test_the_comparison_sees_heads_in_another_order():
    def turned(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return linear(x, kernel[:, ::-1], bias)

    with pytest.raises(AssertionError):
        as_plain(turned, SHAPES[0])


def test_the_gradients_of_bfloat16_parameters_are_float32_sums():
    """A sum in bfloat16, whose error grows with the tokens, is seen."""
    (x, d_out), weights = drawn((2, 300, 8), (2, 300, 4), dtype=jnp.bfloat16), drawn((8, 4), (4,))
    _, pull = jax.vjp(linear, x, *weights)
    d_x, d_kernel, d_bias = pull(d_out)
    assert (d_x.dtype, d_kernel.dtype, d_bias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    exact = np.einsum("bti,bto->io", *(np.asarray(a, np.float64) for a in (x, d_out)))
    np.testing.assert_allclose(d_kernel, exact, rtol=1e-5, atol=1e-5)
    assert np.mean(d_kernel == d_kernel.astype(jnp.bfloat16).astype(jnp.float32)) < 0.2
    exact = np.sum(np.asarray(d_out, np.float64), axis=(0, 1))
    np.testing.assert_allclose(d_bias, exact, rtol=1e-5, atol=1e-5)
    rounded = jnp.sum(d_out, axis=(0, 1), dtype=jnp.bfloat16).astype(jnp.float32)
    assert np.max(np.abs(rounded - exact)) > 1e-3


@pytest.mark.parametrize("approximate", [True, False])
def test_gelu_is_the_tanh_approximation(approximate):
    """With its derivative; the exact GeLU is another function."""
    x = jnp.linspace(-8, 8, 4001)
    (out, pull), (wanted, oracle) = (
        jax.vjp(f, x) for f in (gelu, lambda x: nn.gelu(x, approximate=approximate))
    )
    ones = jnp.ones_like(x)
    errors = [np.max(np.abs(out - wanted)), np.max(np.abs(pull(ones)[0] - oracle(ones)[0]))]
    assert (max(errors) < 1e-5) == approximate, errors


def test_gelu_keeps_its_derivative_alone():
    """JAX's own gradient keeps float32 numbers, which a TPU recomputes from x."""
    x = drawn((4, 32), dtype=jnp.bfloat16)[0]
    kept = [[leaf.dtype for leaf in jax.tree.leaves(jax.vjp(f, x)[1])] for f in (gelu, nn.gelu)]
    assert kept[0] == [jnp.bfloat16] and kept[1] != kept[0]
