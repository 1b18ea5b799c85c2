"""Sinusoidal absolute positions, added to the token embeddings.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.5. The embeddings are first
multiplied by sqrt(D) (section 3.4).

    PE(p, 2k) = sin(p base^(-2k/D)) ,   PE(p, 2k+1) = cos(p base^(-2k/D))
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.angles import angles, pair_frequencies
from fire_lm.positions.base import Params, PositionalEncoding


def sinusoids(pos_BT: jax.Array, width: int, base: float) -> jax.Array:
    """Return PE of each position, float32 `[B, T, width]`, with sines and cosines interleaved."""
    angle_BTK = angles(pos_BT, pair_frequencies(width, base))
    pairs = jnp.stack([jnp.sin(angle_BTK), jnp.cos(angle_BTK)], axis=-1)
    return pairs.reshape(*pos_BT.shape, width)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(PositionalEncoding):
    """Fixed sinusoids that are added to the embeddings. Parameters: none.

    Attributes:
      base: The base of the frequencies; the wavelengths grow geometrically from 2 pi to nearly
        2 pi * base.
    """

    translation_invariant = False

    base: float = 10_000.0

    def __post_init__(self) -> None:
        if self.hidden_size % 2:
            raise UserError(
                f"Sinusoidal pairs sines with cosines: hidden_size {self.hidden_size} must be even"
            )
        if not self.base > 1:
            raise UserError(f"Sinusoidal.base is {self.base:g}: it must be above 1")

    def embed(self, params: Params, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        scaled_BTD = x_BTD.astype(jnp.float32) * np.float32(math.sqrt(self.hidden_size))
        waves_BTD = sinusoids(pos_BT, self.hidden_size, self.base)
        return (scaled_BTD + waves_BTD).astype(x_BTD.dtype)
