"""Sandwich: a bias without parameters, the inner product of two sinusoidal encodings.

Source: Chi et al., "Dissecting Transformer Length Extrapolation" (2212.10356), in the form used by
the FIRE paper (Eq. 16) and NeMo, with d' terms counted from k = 1:

    b_h(i, j) = H / (8 h) * sum_{k=1..d'} cos((i - j) / 10000^(k / d')) ,   h = 1..H

Because cos(x - y) = cos x cos y + sin x sin y, the sum is one matrix product of 2 d' features per
query and per key, which needs T + S sets of cosines instead of T * S.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.angles import angles
from fire_lm.positions.base import Params, PositionalEncoding


def sandwich_frequencies(num_terms: int) -> np.ndarray:
    """Return `10000^(-k / d')`, k = 1..d', in radians per position, float64 `[K]`."""
    return 10_000.0 ** (-np.arange(1, num_terms + 1) / num_terms)


def sandwich_scales(num_heads: int) -> np.ndarray:
    """Return `H / (8 h)`, h = 1..H, float64 `[N]`."""
    return num_heads / (8.0 * np.arange(1, num_heads + 1))


def cosine_sum(q_pos_BT: jax.Array, k_pos_BS: jax.Array, frequency_K: np.ndarray) -> jax.Array:
    """Return the sum of `cos((i - j) * frequency[k])` over k, float32 `[B, T, S]`."""

    def features(pos: jax.Array) -> jax.Array:
        angle = angles(pos, frequency_K)
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)

    # On a CPU, XLA adds the terms of a matrix product in a different order if there is only one
    # row. A query's bias must not depend on the other queries, so a single query is computed twice.
    queries = q_pos_BT.shape[1]
    if queries == 1:
        q_pos_BT = jnp.repeat(q_pos_BT, 2, axis=1)
    # The default precision on TPU would round the features to bfloat16.
    sum_BTS = jnp.einsum(
        "BTK,BSK->BTS", features(q_pos_BT), features(k_pos_BS), precision="highest"
    )
    return sum_BTS[:, :queries]


@dataclasses.dataclass(frozen=True)
class Sandwich(PositionalEncoding):
    """A fixed sum of cosines of the distance. Parameters: none.

    Attributes:
      num_terms: The number d' of cosines, half the width of the sinusoidal encodings.
    """

    num_terms: int = 64

    def __post_init__(self) -> None:
        if self.num_terms < 1:
            raise UserError(f"Sandwich.num_terms is {self.num_terms}: it must be 1 or more")

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        sum_BTS = cosine_sum(q_pos_BT, k_pos_BS, sandwich_frequencies(self.num_terms))
        scale_N = jnp.asarray(sandwich_scales(self.num_heads), jnp.float32)
        return scale_N[None, :, None, None] * sum_BTS[:, None]
