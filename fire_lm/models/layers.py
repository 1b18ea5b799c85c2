"""Pure layer functions: a matrix product and layer normalisation.

Parameters are float32; activations have the compute dtype. Norm statistics are float32.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from fire_lm.attention.saved_residuals import SAVED


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def contract(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `einsum(equation, x, kernel)` with operands in the dtype of x and a float32 result.

    `kernel` is float32, and the product that yields its gradient has a float32 result. Plain
    autodiff of a bfloat16 cast would round each chip's part of the gradient to bfloat16 before the
    sum over the mesh; here this sum is deliberately in float32, whatever the compute dtype.
    """
    return jnp.einsum(equation, x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)


def _contract_forward(equation, x, kernel):
    return contract(equation, x, kernel), (x, kernel)


def _contract_backward(equation, residuals, gradient):
    x, kernel = residuals
    gradient = gradient.astype(x.dtype)
    operands, out = equation.split("->")
    inside, weights = operands.split(",")
    x_gradient = jnp.einsum(f"{out},{weights}->{inside}", gradient, kernel.astype(x.dtype))
    # The operands follow the order of the kernel's axes. The opposite order would require a final
    # transpose, which XLA's CPU backend folds into a bfloat16 product that it cannot run.
    pairs = [(inside, x), (out, gradient)]
    (first, a), (second, b) = pairs if weights[0] in inside else pairs[::-1]
    kernel_gradient = jnp.einsum(
        f"{first},{second}->{weights}", a, b, preferred_element_type=kernel.dtype
    )
    return x_gradient.astype(x.dtype), kernel_gradient


contract.defvjp(_contract_forward, _contract_backward)


def layer_norm(x_BTD: jax.Array, scale_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """Apply LayerNorm (Ba et al., 2016) over the last axis with epsilon 1e-5.

    The statistics are float32. Flax's own norm promotes dtypes implicitly, which JAX's strict
    promotion mode in our tests forbids.
    """
    x = x_BTD.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    mean, scale = (checkpoint_name(y, SAVED) for y in (mean, jax.lax.rsqrt(variance + 1e-5)))
    normalized = (x - mean) * scale
    return (normalized * scale_D[None, None, :] + bias_D[None, None, :]).astype(x_BTD.dtype)
