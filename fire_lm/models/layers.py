"""Pure layer functions: matrix product and layer normalisation.

Parameters are float32; activations have the compute dtype. Norm statistics are float32.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def contract(x: jax.Array, kernel: jax.Array, num_in_axes: int) -> jax.Array:
    """Contracts the last axes of `x` with the first of `kernel`, computing in x's dtype.

    `x [*batch, *in]`, `kernel [*in, *out]` float32 -> `[*batch, *out]` float32.

    The kernel's gradient leaves the product in float32. Plain autodiff of a bfloat16 cast would
    round each chip's part to bfloat16 before the sum over the mesh; this makes the reduction
    float32 on purpose, whatever the compute dtype.
    """
    return jnp.tensordot(
        x, kernel.astype(x.dtype), axes=num_in_axes, preferred_element_type=jnp.float32
    )


def _contract_forward(x, kernel, num_in_axes):
    return contract(x, kernel, num_in_axes), (x, kernel)


def _contract_backward(num_in_axes, residuals, gradient):
    x, kernel = residuals
    gradient = gradient.astype(x.dtype)
    num_batch_axes = x.ndim - num_in_axes
    out_axes = list(range(num_batch_axes, gradient.ndim))
    kernel_out_axes = list(range(num_in_axes, kernel.ndim))
    x_gradient = jnp.tensordot(gradient, kernel.astype(x.dtype), axes=(out_axes, kernel_out_axes))
    batch_axes = list(range(num_batch_axes))
    kernel_gradient = jnp.tensordot(
        x, gradient, axes=(batch_axes, batch_axes), preferred_element_type=kernel.dtype
    )
    return x_gradient.astype(x.dtype), kernel_gradient


contract.defvjp(_contract_forward, _contract_backward)


def layer_norm(x_BTD: jax.Array, scale_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """LayerNorm over the last axis (Ba et al., 2016), epsilon 1e-5; statistics in float32.

    Flax's own norm promotes dtypes implicitly, which our strict mode forbids.
    """
    x = x_BTD.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    normalized = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return (normalized * scale_D[None, None, :] + bias_D[None, None, :]).astype(x_BTD.dtype)
