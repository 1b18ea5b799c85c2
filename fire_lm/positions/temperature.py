"""A temperature that grows with the position of the query: q·k is multiplied by a slow logarithm.

    1 + strength log(1 + floor((i + offset) / length))

Sources: Llama 4, on its layers without RoPE (offset 1, length 8192); Ministral 3 and Mistral 4, on
all layers, after RoPE (offset 0, the original length); both as in transformers. The factor is 1 for
the first `length` positions.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding


@dataclasses.dataclass(frozen=True)
class Temperature(PositionalEncoding):
    """A factor on q·k that depends on the query's position. Parameters: none.

    Attributes:
      strength: The factor on the logarithm.
      length: The number of positions after which the logarithm grows; None means the training
        length.
      offset: What is added to a position, at least 0: 1 in Llama 4, 0 in Ministral.
    """

    translation_invariant = False
    evaluation_fields: ClassVar[tuple[str, ...]] = ("strength",)
    length_fields: ClassVar[tuple[str, ...]] = ("length",)

    strength: float = 0.1
    length: int | None = None
    offset: int = 1

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise UserError(f"Temperature.length is {self.length}: it must be above 0")
        if self.offset < 0:  # the logarithm is infinite at the first positions
            raise UserError(f"Temperature.offset is {self.offset}: it must be 0 or more")

    def logit_scale(self, params: Params, q_pos_BT: jax.Array) -> jax.Array:
        length = self.train_length if self.length is None else self.length
        spans_BT = jnp.floor((q_pos_BT + self.offset).astype(jnp.float32) / length)
        return 1 + self.strength * jnp.log1p(spans_BT)
