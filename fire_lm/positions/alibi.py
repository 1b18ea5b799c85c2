"""ALiBi: a penalty that is linear in the distance, with one fixed slope per head.

Source: Press et al., "Train Short, Test Long" (ICLR 2022), `b_h(i, j) = -m_h (i - j)`.

ALiBi-PI (Al-Khateeb et al., 2310.13017) is for inputs of L' tokens, where L' exceeds the training
length L: the slopes become `m_h L / L'`, so that the whole input spans the penalties seen in
training. It applies at inference only, and all queries of an input use the same L'.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.positions.base import Params, PositionalEncoding, distance


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return the official slopes `m_h` for any number of heads, float64 `[N]`.

    If N is a power of two, the slopes are 2^(-8k/N), k = 1..N. Otherwise, the slopes of the next
    lower power of two are followed by every other slope of the next higher power of two, so the
    slopes of 12 heads, for example, are not sorted.
    """

    def power_of_two(n: int) -> list[float]:
        return [2.0 ** (-8.0 * k / n) for k in range(1, n + 1)]

    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = power_of_two(lower) + power_of_two(2 * lower)[0::2][: num_heads - lower]
    return np.asarray(slopes, np.float64)


@dataclasses.dataclass(frozen=True)
class ALiBi(PositionalEncoding):
    """A fixed bias for each head that is linear in the distance. Parameters: none.

    Attributes:
      interpolate: Whether to apply ALiBi-PI, which leaves inputs of up to `train_length` tokens
        unchanged.
    """

    evaluation_fields: ClassVar[tuple[str, ...]] = ("interpolate",)

    interpolate: bool = False

    @property
    def uses_context_length(self) -> bool:
        return self.interpolate

    def interpolated(self) -> ALiBi | None:
        return None if self.interpolate else dataclasses.replace(self, interpolate=True)

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        del params
        slope_N = alibi_slopes(self.num_heads)
        if self.interpolate and context_length > self.train_length:
            slope_N = slope_N * self.train_length / context_length
        slope_1N11 = jnp.asarray(slope_N, jnp.float32)[None, :, None, None]
        return -slope_1N11 * distance(q_pos_BT, k_pos_BS).astype(jnp.float32)[:, None]
