"""RoPE: queries and keys are rotated by an angle proportional to their position.

Source: Su et al., "RoFormer" (2021), Eq. 34, in the half-split layout of GPT-NeoX and Llama: the
pair of dimension k is (k, k + H/2), with frequency base^(-2k/H). The interleaved layout is the
same function after a permutation of the query and key columns.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding


def rope_frequencies(head_dim: int, base: float) -> jax.Array:
    """Angle per position of each pair, radians, float32 `[H/2]`."""
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    return jnp.float32(base) ** -exponent


def rotate_half_split(x_BTNH: jax.Array, pos_BT: jax.Array, frequency_K: jax.Array) -> jax.Array:
    """Rotates pair (k, k + H/2) of `x_BTNH` by `pos * frequency[k]`, in float32."""
    angle_BTK = pos_BT.astype(jnp.float32)[:, :, None] * frequency_K[None, None, :]
    cos, sin = jnp.cos(angle_BTK)[:, :, None, :], jnp.sin(angle_BTK)[:, :, None, :]
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BTNH.dtype)


@dataclasses.dataclass(frozen=True)
class RoPE(PositionalEncoding):
    """Rotary encoding. Parameters: none.

    Attributes:
      base: theta, ratio of the slowest to the fastest wavelength.
    """

    base: float = 10_000.0

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise UserError(f"RoPE rotates pairs: head_dim {self.head_dim} must be even")

    def rotate(
        self,
        params: Params,
        q_BTNH: jax.Array,
        k_BSNH: jax.Array,
        q_pos_BT: jax.Array,
        k_pos_BS: jax.Array,
        context_length: int,
    ) -> tuple[jax.Array, jax.Array]:
        del params, context_length
        frequency_K = rope_frequencies(self.head_dim, self.base)
        q_BTNH = rotate_half_split(q_BTNH, q_pos_BT, frequency_K)
        return q_BTNH, rotate_half_split(k_BSNH, k_pos_BS, frequency_K)
