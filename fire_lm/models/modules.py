"""Linear modules with the parameters of a layer's norms and matrix products."""

from __future__ import annotations

import flax.linen as nn
import jax

from fire_lm.models.layers import layer_norm, linear


class LayerNorm(nn.Module):
    """LayerNorm with learned scale and bias; see `layers.layer_norm`."""

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        shape = (x_BTD.shape[-1],)
        scale_D = self.param("scale", nn.initializers.ones, shape)
        return layer_norm(x_BTD, scale_D, self.param("bias", nn.initializers.zeros, shape))


class Linear(nn.Module):
    """A linear layer over all axes of x `[B, T, ...]` but the first two; see `linear`."""

    out_shape: tuple[int, ...]
    std: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = x.shape[2:] + self.out_shape
        kernel = self.param("kernel", nn.initializers.normal(self.std), shape)
        bias = self.param("bias", nn.initializers.zeros, self.out_shape)
        return linear(x, kernel, bias)
