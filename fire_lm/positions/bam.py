"""BAM: a bias that is a learned power of the distance, with the prior of a generalised Gaussian.

Source: arXiv:2505.22842 (ICLR 2026), and its code,

    b_h(i, j) = -e^scale_h (|i - j| + 1e-5)^shape_h

It starts as ALiBi: shape 1, e^scale = ALiBi's slopes. The shape may become negative, so that near
keys are forgotten instead of distant ones. The location of the Gaussian is frozen at 0 in the
published runs, and absent here. The authors share the parameters among all layers and usually add
SSMax (configs/log_n/ssmax.gin).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.positions.alibi import alibi_slopes
from fire_lm.positions.base import Params, PositionalEncoding, distance

_NEAREST = 1e-5  # keeps powers and their gradients finite at distance 0


@dataclasses.dataclass(frozen=True)
class BAM(PositionalEncoding):
    """A learned power of the distance. Parameters per layer for 12 heads: 24."""

    constant_init: ClassVar[bool] = True

    def init(self, rng: jax.Array) -> Params:
        scale_N = jnp.asarray(np.log(alibi_slopes(self.num_heads)), jnp.float32)
        return {"scale": scale_N, "shape": jnp.ones(self.num_heads, jnp.float32)}

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        distance_B1TS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)[:, None] + _NEAREST
        scale, shape = (params[name][None, :, None, None] for name in ("scale", "shape"))
        return -jnp.exp(scale + shape * jnp.log(distance_B1TS))

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        return {f"shape_{head}": params["shape"][head] for head in range(self.num_heads)}
