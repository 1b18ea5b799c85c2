"""xPos: RoPE with factors on queries and keys that make q·k decay with the distance.

Source: Sun et al., "A Length-Extrapolatable Transformer" (ACL 2023), Algorithm 1, and its code in
torchscale, whose interleaved layout and constants we follow:

    pair k of query i, turned by i theta_k, is multiplied by zeta_k^(i / 512)
    pair k of key j,   turned by j theta_k, is multiplied by zeta_k^(-j / 512)
    zeta_k = (2k + 0.4 d) / (1.4 d) ,   k = 0 .. d/2 - 1

For keys after the query, q·k grows instead, so xPos is an encoding for causal attention only.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.angles import angles, pair_frequencies
from fire_lm.positions.base import Params, PositionalEncoding
from fire_lm.positions.rope import turn_pairs

# The bound on the absolute logarithm of the product of a query's and a key's factor. The range of
# float32 and bfloat16 ends at e^88, so a factor of e^12 remains for q·k itself, even for keys that
# attention masks.
LARGEST_EXPONENT = 76.0


def decay_rates(head_dim: int, scale_base: float, context_length: int) -> np.ndarray:
    """Return -log(zeta_k) / scale_base, the decay of each pair per token, float64 `[H/2]`.

    Over a complete input, the product of a query's factor and a key's factor decreases from 1 to
    e^(-rate * context_length); for masked keys, it increases to the inverse of this value. float32
    cannot represent this range for long inputs, so each rate is at most `LARGEST_EXPONENT /
    context_length`. With the scale base 512, this limit changes nothing up to 31,060 tokens. For
    longer inputs, the pairs with the highest frequencies decay more slowly than published, to e^-76
    from one end of the input to the other.
    """
    zeta_K = (np.arange(0, head_dim, 2) + 0.4 * head_dim) / (1.4 * head_dim)
    return np.minimum(-np.log(zeta_K) / scale_base, LARGEST_EXPONENT / context_length)


@dataclasses.dataclass(frozen=True)
class XPos(PositionalEncoding):
    """A rotary encoding with decay. Parameters: none.

    For inputs beyond 31,060 tokens (at the default scale base), q·k decays more slowly than
    published; see `decay_rates`. Resampled positions beyond this bound are rejected, because
    float32 would overflow.

    Attributes:
      base: The base theta, as in RoPE.
      scale_base: The number of tokens over which pair k decays by the factor zeta_k.
    """

    base: float = 10_000.0
    scale_base: float = 512.0

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise UserError(f"XPos rotates pairs of dims: head_dim {self.head_dim} must be even")
        for name, least in (("base", 1), ("scale_base", 0)):
            if not getattr(self, name) > least:
                raise UserError(f"XPos.{name} is {getattr(self, name):g}: it must be above {least}")

    @property
    def uses_context_length(self) -> bool:
        return True

    @property
    def stretches(self) -> bool:
        return False  # the factors of q and k that depend on it cancel

    def bidirectional(self) -> PositionalEncoding:
        raise UserError(
            "XPos makes q·k grow with the distance of later keys: choose another encoding, such as "
            "RoPE, for an encoder"
        )

    def periods(self) -> np.ndarray:
        """Return the period of each pair k, `2 pi base^(2k/d)`, as in RoPE."""
        return 2 * np.pi / pair_frequencies(self.head_dim, self.base)

    def check_length(self, length: int, context_length: int) -> None:
        rate = decay_rates(self.head_dim, self.scale_base, context_length).max()
        if rate * length > LARGEST_EXPONENT * (1 + 1e-6):
            raise UserError(
                f"XPos overflows at positions up to {length:,} in an input of {context_length:,} "
                f"tokens: keep resampled positions below {int(LARGEST_EXPONENT / rate):,}"
            )

    def rotate(
        self,
        params: Params,
        q_BTNH: jax.Array,
        k_BSNH: jax.Array,
        q_pos_BT: jax.Array,
        k_pos_BS: jax.Array,
        context_length: int,
    ) -> tuple[jax.Array, jax.Array]:
        frequency_K = pair_frequencies(self.head_dim, self.base)
        rate_K = jnp.asarray(
            decay_rates(self.head_dim, self.scale_base, context_length), jnp.float32
        )

        def rotated(x_BTNH: jax.Array, pos_BT: jax.Array, sign: int) -> jax.Array:
            angle_BTK = angles(pos_BT, frequency_K)
            # Positions are relative to the middle of the input. This offset cancels in q·k and
            # keeps every factor below e^(76/2).
            centred_BT = (pos_BT - context_length // 2).astype(jnp.float32)
            scale_BTK = jnp.exp(sign * centred_BT[:, :, None] * rate_K[None, None, :])
            cos_BTK, sin_BTK = jnp.cos(angle_BTK) * scale_BTK, jnp.sin(angle_BTK) * scale_BTK
            return turn_pairs(x_BTNH, cos_BTK, sin_BTK, "interleaved")

        return rotated(q_BTNH, q_pos_BT, -1), rotated(k_BSNH, k_pos_BS, 1)
