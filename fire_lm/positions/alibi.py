"""ALiBi: a penalty that is linear in the distance, with one fixed slope per head.

Source: Press et al., "Train Short, Test Long" (ICLR 2022), `b_h(i, j) = -m_h (i - j)`.

ALiBi-PI (Al-Khateeb et al., 2310.13017) is for inputs of L' tokens, where L' exceeds the training
length L: the slopes become `m_h L / L'`, so that the whole input spans the penalties seen in
training. It applies at inference only, and all queries of an input use the same L'.

NAPE (arXiv:2506.16640, ICLR 2026) gives ALiBi to half of the heads and no encoding to the others.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
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
      biased_fraction: The fraction of the heads, counted from the first, that have a slope: those
        of a model with so many heads. The others have no bias. NAPE uses 0.5.
    """

    evaluation_fields: ClassVar[tuple[str, ...]] = ("interpolate",)

    interpolate: bool = False
    biased_fraction: float = 1.0

    def __post_init__(self) -> None:
        biased = self.biased_fraction * self.num_heads
        if not 1 <= round(biased) <= self.num_heads or abs(biased - round(biased)) > 1e-6:
            raise UserError(
                f"ALiBi.biased_fraction is {self.biased_fraction:g}: of {self.num_heads} heads, it "
                f"selects {biased:g}, but the number must be an integer from 1 to {self.num_heads}"
            )

    def slopes(self) -> np.ndarray:
        """Return the slopes of all heads, float64 `[N]`."""
        biased = round(self.biased_fraction * self.num_heads)
        return np.concatenate([alibi_slopes(biased), np.zeros(self.num_heads - biased)])

    @property
    def uses_context_length(self) -> bool:
        return self.interpolate

    def interpolated(self) -> ALiBi | None:
        return None if self.interpolate else dataclasses.replace(self, interpolate=True)

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        slope_N = self.slopes()
        if self.interpolate and context_length > self.train_length:
            slope_N = slope_N * self.train_length / context_length
        slope_1N11 = jnp.asarray(slope_N, jnp.float32)[None, :, None, None]
        return -slope_1N11 * distance(q_pos_BT, k_pos_BS).astype(jnp.float32)[:, None]
