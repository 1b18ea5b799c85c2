"""RoPE: a rotation of queries and keys by angles proportional to their positions.

Source: Su et al., "RoFormer" (2021), Eq. 34. Pair k of d rotated dims turns by the angle
`position * base^(-2k/d)`, so that q·k depends on positions only through the distance. Two layouts
define the pairs:

* half: (k, k + d/2), as in GPT-NeoX, Llama and Hugging Face;
* interleaved: (2k, 2k + 1), as in RoFormer and GPT-J.

The two layouts are the same function up to a permutation of the query and key columns, so weights
trained with one layout do not work with the other. A partial rotation (GPT-NeoX) turns the first d
dims and leaves the others unchanged; its frequencies are those of a head of width d.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.angles import angles, pair_frequencies
from fire_lm.positions.base import Params, PositionalEncoding
from fire_lm.positions.rope_scaling import PositionInterpolation, RopeScaling

Layout = Literal["half", "interleaved"]


def turn_pairs(
    x_BTNH: jax.Array, cos_BTK: jax.Array, sin_BTK: jax.Array, layout: Layout
) -> jax.Array:
    """Map each pair (a, b) of the first 2K dims to (a cos - b sin, b cos + a sin).

    The result is computed in float32 and has the dtype of x; dims from 2K on are unchanged.
    """
    cos, sin = cos_BTK[:, :, None, :], sin_BTK[:, :, None, :]
    width = 2 * cos.shape[-1]
    turned, passed = x_BTNH[..., :width].astype(jnp.float32), x_BTNH[..., width:]
    if layout == "half":
        a, b = jnp.split(turned, 2, axis=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
    pairs = [a * cos - b * sin, b * cos + a * sin]
    if layout == "half":
        turned = jnp.concatenate(pairs, axis=-1)
    else:
        turned = jnp.stack(pairs, axis=-1).reshape(turned.shape)
    turned = turned.astype(x_BTNH.dtype)
    return jnp.concatenate([turned, passed], axis=-1) if passed.shape[-1] else turned


@dataclasses.dataclass(frozen=True)
class RoPE(PositionalEncoding):
    """A rotary encoding. Parameters: none.

    Attributes:
      base: The base theta; the wavelengths grow geometrically from 2 pi to nearly 2 pi theta.
      rotary_fraction: The fraction of the dims of a head that is rotated, counted from the first.
      turning_fraction: The fraction p of the pairs that turn, those with the highest frequencies;
        the others keep their place in the layout but have the frequency 0 (p-RoPE,
        arXiv:2410.06205). Whatever `scaling` does, they remain still.
      layout: Which dims form a pair, "half" or "interleaved".
      scaling: The change to the frequencies for inputs beyond the training length, or None.
    """

    evaluation_fields: ClassVar[tuple[str, ...]] = ("scaling",)

    base: float = 10_000.0
    rotary_fraction: float = 1.0
    turning_fraction: float = 1.0
    layout: Layout = "half"
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not self.base > 1:
            raise UserError(f"RoPE.base is {self.base}: it must be above 1")
        if not 0 < self.rotary_fraction <= 1:
            raise UserError(
                f"RoPE.rotary_fraction is {self.rotary_fraction}: it must be above 0 and at most 1"
            )
        if not 0 <= self.turning_fraction <= 1:
            raise UserError(
                f"RoPE.turning_fraction is {self.turning_fraction:g}: it must be from 0 to 1"
            )
        rotated = self.rotary_fraction * self.head_dim
        width = self.rotary_width
        if width < 2 or width % 2 or abs(rotated - width) > 1e-6:
            raise UserError(
                f"RoPE.rotary_fraction is {self.rotary_fraction:g}: of the {self.head_dim} dims "
                f"of a head, it selects {rotated:g}, but the number must be even"
            )

    @property
    def rotary_width(self) -> int:
        """The number d of rotated dims of a head."""
        return round(self.rotary_fraction * self.head_dim)

    @property
    def turning_pairs(self) -> int:
        """The number of pairs that turn."""
        return math.floor(self.turning_fraction * (self.rotary_width // 2) + 1e-6)

    @property
    def uses_context_length(self) -> bool:
        return self.scaling is not None and self.scaling.follows_input

    def interpolated(self) -> RoPE | None:
        if self.scaling is not None:
            return None
        return dataclasses.replace(self, scaling=PositionInterpolation())

    def frequencies(self, context_length: int) -> tuple[np.ndarray, float]:
        """Return the radians per position, float64 `[d/2]`, and the factor on cos and sin."""
        frequency_K, factor = pair_frequencies(self.rotary_width, self.base), 1.0
        if self.scaling is not None:
            lengths = (self.train_length, context_length)
            frequency_K, factor = self.scaling.frequencies(self.rotary_width, self.base, *lengths)
        turns_K = np.arange(len(frequency_K)) < self.turning_pairs
        return np.where(turns_K, frequency_K, 0.0), factor

    def periods(self) -> np.ndarray:
        """Return the period of each pair k that turns, `2 pi base^(2k/d)` without a scaling."""
        frequency_K, _ = self.frequencies(self.train_length)
        return 2 * np.pi / frequency_K[frequency_K > 0]

    def rotate(
        self,
        params: Params,
        q_BTNH: jax.Array,
        k_BSNH: jax.Array,
        q_pos_BT: jax.Array,
        k_pos_BS: jax.Array,
        context_length: int,
    ) -> tuple[jax.Array, jax.Array]:
        frequency_K, factor = self.frequencies(context_length)

        def rotated(x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
            angle_BTK = angles(pos_BT, frequency_K)
            cos_BTK, sin_BTK = (np.float32(factor) * f(angle_BTK) for f in (jnp.cos, jnp.sin))
            return turn_pairs(x_BTNH, cos_BTK, sin_BTK, self.layout)

        return rotated(q_BTNH, q_pos_BT), rotated(k_BSNH, k_pos_BS)
