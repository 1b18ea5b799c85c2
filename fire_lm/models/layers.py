"""Pure layer functions: matrix products, GeLU and layer normalisation.

Parameters are float32; activations have the compute dtype. Norm statistics are float32.
"""

from __future__ import annotations

import functools
import math

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
    own = next(axis for axis in weights if not (axis in inside and axis in out))
    (first, a), (second, b) = pairs if own in inside else pairs[::-1]
    kernel_gradient = jnp.einsum(
        f"{first},{second}->{weights}", a, b, preferred_element_type=kernel.dtype
    )
    return x_gradient.astype(x.dtype), kernel_gradient


contract.defvjp(_contract_forward, _contract_backward)


# The rows of ones whose product with a gradient is its sum: those of a register.
_SUBLANES = 8


@jax.custom_vjp
def linear(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return x times `kernel`, plus `bias`, in the dtype of x.

    The product contracts all axes of x `[B, T, ...]` but the first two, and the axes of the bias
    are the last ones of the kernel. The gradients of both parameters are float32 sums.

    The contracted axes are merged before the product, because TPUs would otherwise contract them
    one after the other, and the 64 columns of a head fill only half of the MXU.
    """
    inputs = kernel.ndim - bias.ndim
    rows_BTI = x.reshape(*x.shape[:2], -1)
    out_axes = "NH"[: bias.ndim]
    kernel = kernel.reshape(-1, *kernel.shape[inputs:])
    out = contract(f"BTI,I{out_axes}->BT{out_axes}", rows_BTI, kernel)
    return (out + bias[None, None]).astype(x.dtype)


def _linear_forward(x, kernel, bias):
    return linear(x, kernel, bias), (x, kernel)


def _linear_backward(residuals, d_out):
    x, kernel = residuals
    in_axes = "NH"[: x.ndim - 2]
    d_BTO = d_out.reshape(*d_out.shape[:2], -1)
    in_by_out = kernel.reshape(*x.shape[2:], -1).astype(x.dtype)
    d_x = jnp.einsum(f"BTO,{in_axes}O->BT{in_axes}", d_BTO, in_by_out)
    x_BTI = x.reshape(*x.shape[:2], -1)
    d_IO = jnp.einsum("BTI,BTO->IO", x_BTI, d_BTO, preferred_element_type=jnp.float32)
    # Without the barrier, the compiler splits the product's axes again.
    d_kernel = jax.lax.optimization_barrier(d_IO).reshape(kernel.shape)
    return d_x, d_kernel, _sum_of_rows(d_BTO).reshape(d_out.shape[2:])


linear.defvjp(_linear_forward, _linear_backward)


def _sum_of_rows(x_BTO: jax.Array) -> jax.Array:
    """Return the sum over B and T in float32."""
    if x_BTO.dtype == jnp.float32:  # A product would round it on TPUs.
        return jnp.sum(x_BTO, axis=(0, 1))
    # A product with ones, which takes TPUs a fifth of the time of a sum over lanes. The barrier
    # prevents the compiler from turning the one into the other.
    ones_RT = jax.lax.optimization_barrier(jnp.ones((_SUBLANES, x_BTO.shape[1]), x_BTO.dtype))
    found_BRO = jnp.einsum("RT,BTO->BRO", ones_RT, x_BTO, preferred_element_type=jnp.float32)
    return jnp.sum(found_BRO[:, 0], axis=0)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of GeLU (Hendrycks and Gimpel, 2016), computed in float32.

    The derivative is computed together with the value and kept for the backward pass, in the dtype
    of x: on TPUs, computing both again for each product of the backward pass takes longer than
    reading them.
    """
    return _gelu_forward(x)[0]


def _gelu_forward(x):
    h = x.astype(jnp.float32)
    slope, cubic = math.sqrt(2 / math.pi), 0.044715
    share = 0.5 + 0.5 * jnp.tanh(slope * (h + cubic * h * h * h))
    value = h * share
    derivative = share + 2 * value * (1 - share) * slope * (1 + 3 * cubic * h * h)
    # Without the barrier, the compiler computes both again in every product that reads them.
    return jax.lax.optimization_barrier((value.astype(x.dtype), derivative.astype(x.dtype)))


def _gelu_backward(derivative, d_out):
    product = d_out.astype(jnp.float32) * derivative.astype(jnp.float32)
    return (product.astype(d_out.dtype),)


gelu.defvjp(_gelu_forward, _gelu_backward)


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
