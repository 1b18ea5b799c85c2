"""FIRE: functional interpolation for relative positions.

Source: Li et al. (ICLR 2024), Eq. 4 (= Eq. 23 of its appendix):

    b_h(i, j) = f_theta( psi(i - j) / psi(max(L, i)) )_h ,   psi(x) = log(c x + 1)

`f_theta` is one MLP R -> R^N for all heads of a layer; c and L are learned scalars. The printed
text leaves open what the code of Appendix E decides, and we follow the code:

* the MLP has biases ("omitted for brevity" in footnote 5): without them a ReLU MLP of a scalar in
  [0, 1] is a straight line through 0;
* kernels and biases start from U(-1/sqrt(fan_in), 1/sqrt(fan_in)): with zero biases f is exactly
  linear at step 0;
* c and L enter by their absolute values, and L = |m * init_L| with only m (from 1) learned, so
  that Adam moves L by a fraction of itself instead of by the learning rate;
* positions count from 0, and epsilon is added to the denominator after the logarithm.

The default has the two hidden layers of the paper's experiments (Appendix B and C.1, Table 5);
Appendix E's listing has one: `FIRE(..., hidden_layers=1, init_L=512)`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding, distance


def normalized_distance(
    q_pos_BT: jax.Array, k_pos_BS: jax.Array, c: jax.Array, L: jax.Array, epsilon: float
) -> jax.Array:
    """The argument of f in Eq. 4, float32 `[B, T, S]`; in [0, 1] for keys not after the query.

    Keys after the query get the value of the mirrored distance, as in Appendix E: finite, masked.
    """
    distance_BTS = jnp.abs(distance(q_pos_BT, k_pos_BS)).astype(jnp.float32)
    normalizer_BT = jnp.maximum(q_pos_BT.astype(jnp.float32), jnp.abs(L))
    psi_normalizer_BT = jnp.log1p(jnp.abs(c) * normalizer_BT) + epsilon
    return jnp.log1p(jnp.abs(c) * distance_BTS) / psi_normalizer_BT[:, :, None]


def init_mlp(rng: jax.Array, widths: tuple[int, ...]) -> Params:
    """Dense layers `widths[0] -> ... -> widths[-1]`, uniform in +-1/sqrt(fan_in), float32."""
    params = {}
    for index, (fan_in, fan_out) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        rng, kernel_rng, bias_rng = jax.random.split(rng, 3)
        bound = 1 / math.sqrt(fan_in)
        params[f"dense_{index}"] = {
            "kernel": jax.random.uniform(kernel_rng, (fan_in, fan_out), jnp.float32, -bound, bound),
            "bias": jax.random.uniform(bias_rng, (fan_out,), jnp.float32, -bound, bound),
        }
    return params


def mlp(params: Params, x: jax.Array) -> jax.Array:
    """f_theta of Eq. 4 for every entry of `x`: float32 `[...] -> [..., N]`, ReLU between layers."""
    hidden = x[..., None]
    last = len(params) - 1
    for index in range(len(params)):
        layer = params[f"dense_{index}"]
        bias = layer["bias"].reshape((1,) * (hidden.ndim - 1) + (-1,))
        # The default matmul precision on TPU would round these float32 operands to bfloat16.
        hidden = jnp.matmul(hidden, layer["kernel"], precision="highest") + bias
        if index < last:
            hidden = jax.nn.relu(hidden)
    return hidden


@dataclasses.dataclass(frozen=True)
class FIRE(PositionalEncoding):
    """Eq. 4. Parameters per layer for 12 heads: 1518 (two hidden layers of 32), 462 (Appendix E).

    FIRE-S is this encoding with `build_decoder.share_position = True`.

    Attributes:
      hidden_layers: hidden layers of f_theta, at least 0 (0: f is affine).
      width: width of each hidden layer.
      init_c: initial c of psi.
      init_L: initial threshold L in tokens; None: a quarter of `train_length`, the paper's ratio
        (512 at 2048).
      epsilon: added to psi(max(L, i)).
    """

    translation_invariant: ClassVar[bool] = False  # it divides by the query's position

    hidden_layers: int = 2
    width: int = 32
    init_c: float = 0.1
    init_L: float | None = None
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.hidden_layers < 0:
            raise UserError(f"FIRE.hidden_layers is {self.hidden_layers}: it must be 0 or more")
        if self.init_L is None:
            object.__setattr__(self, "init_L", self.train_length / 4)

    def init(self, rng: jax.Array) -> Params:
        widths = (1, *[self.width] * self.hidden_layers, self.num_heads)
        return {
            "c": jnp.float32(self.init_c),
            "L_multiplier": jnp.float32(1.0),
            "mlp": init_mlp(rng, widths),
        }

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        del context_length
        L = params["L_multiplier"] * self.init_L
        x_BTS = normalized_distance(q_pos_BT, k_pos_BS, params["c"], L, self.epsilon)
        return jnp.moveaxis(mlp(params["mlp"], x_BTS), -1, 1)
