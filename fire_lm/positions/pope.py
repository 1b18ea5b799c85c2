"""PoPE: polar coordinates, whose radius is the content and whose angle is the position.

Source: arXiv:2509.10534. With mu = softplus(q or k), for each of the H dims c of a head,

    q·k = sum_c mu_q mu_k cos((i - j) theta_c - delta_c),   theta_c = base^(-c/H)

RoPE turns pairs of dims, and has half as many frequencies. The phases delta are learned. The paper
clips them to [-2 pi, 0], but they start on this boundary, where one step outwards would stop their
gradient for ever; since the cosine has the period 2 pi, we do not clip.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.angles import angles
from fire_lm.positions.base import Params, PositionalEncoding


@dataclasses.dataclass(frozen=True)
class PoPE(PositionalEncoding):
    """A rotary encoding of one angle per dim.

    Parameters per layer for 12 heads: 96 for heads of 8 dims. For heads of 64, there are 768.

    Queries and keys become twice as wide as values, as does the cache of keys. The TPU kernel
    supports heads of 64 dims.

    Attributes:
      base: The base theta, as in RoPE.
    """

    constant_init: ClassVar[bool] = True

    base: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.base > 1:
            raise UserError(f"PoPE.base is {self.base:g}: it must be above 1")

    def frequencies(self) -> np.ndarray:
        """Return the radians per position of each dim, float64 `[H]`."""
        return np.float64(self.base) ** (-np.arange(self.head_dim) / self.head_dim)

    def periods(self) -> np.ndarray:
        return 2 * np.pi / self.frequencies()

    def init(self, rng: jax.Array) -> Params:
        return {"delta": jnp.zeros((self.num_heads, self.head_dim), jnp.float32)}

    def rotate(
        self,
        params: Params,
        q_BTNH: jax.Array,
        k_BSNH: jax.Array,
        q_pos_BT: jax.Array,
        k_pos_BS: jax.Array,
        context_length: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Return queries and keys of 2H dims, whose product is sqrt(2) times the sum above.

        Attention divides it by sqrt(2H), so the logits are the sum divided by sqrt(H).
        """

        def polar(x_BTNH: jax.Array, angle_BTNH: jax.Array, factor: float) -> jax.Array:
            radius_BTNH = factor * jax.nn.softplus(x_BTNH.astype(jnp.float32))
            parts = [radius_BTNH * turn(angle_BTNH) for turn in (jnp.cos, jnp.sin)]
            return jnp.concatenate(parts, axis=-1).astype(x_BTNH.dtype)

        q_angle, k_angle = (
            angles(pos, self.frequencies())[:, :, None] for pos in (q_pos_BT, k_pos_BS)
        )
        k_angle = k_angle + params["delta"][None, None]
        return polar(q_BTNH, q_angle, math.sqrt(2)), polar(k_BSNH, k_angle, 1.0)

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        """Return each head's mean distance of its phases from 0 in radians, up to whole turns."""
        turned_NH = jnp.abs(jnp.mod(params["delta"] + math.pi, 2 * math.pi) - math.pi)
        return {f"phase_{head}": jnp.mean(turned_NH[head]) for head in range(self.num_heads)}
