"""The kinds of layer that alternate in a decoder.

Layer i of a decoder with n turns belongs to turn i % n.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from fire_lm.errors import UserError
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.log_n import LogN

Kind = Callable[..., PositionalEncoding]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What a layer's attention does besides its encoding.

    Attributes:
      log_n: The scaling of attention by log n, or None; `build_decoder.log_n` if that is set.
    """

    log_n: LogN | None = None


@dataclasses.dataclass(frozen=True)
class Turn(LayerOptions):
    """One of the alternating kinds of layer, with the encoding of its layers."""

    # Fields that may change after training, because trained parameters do not depend on them.
    evaluation_fields: ClassVar[tuple[str, ...]] = ("log_n",)

    encoding: PositionalEncoding


@dataclasses.dataclass(frozen=True)
class Layers(LayerOptions):
    """One or more consecutive layers of the same kind, as an element of `build_decoder.position`.

    Attributes:
      encoding: The class of the positional encoding, or another callable that returns it.
      count: The number of consecutive layers.
    """

    encoding: Kind
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"Layers.count is {self.count}: it must be 1 or more")

    def turns(
        self, num_heads: int, head_dim: int, train_length: int, hidden_size: int
    ) -> list[Turn]:
        """Return one `Turn` for each of the layers."""
        encoding = self.encoding(
            num_heads=num_heads,
            head_dim=head_dim,
            train_length=train_length,
            hidden_size=hidden_size,
        )
        options = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(LayerOptions)
        }
        return [Turn(encoding, **options)] * self.count
