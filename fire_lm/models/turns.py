"""The kinds of layer that alternate in a decoder.

Layer i of a decoder with n turns belongs to turn i % n. `Layers` is what a user writes in
`build_decoder.position`; `Turn` is the same with the encoding that was built for the model's size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fire_lm.attention import Mask
from fire_lm.errors import UserError
from fire_lm.models.mixers import Attention, Mixer
from fire_lm.models.sizes import ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.log_n import LogN

Kind = Callable[..., PositionalEncoding]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What a layer does besides its encoding.

    Attributes:
      mixer: What stands between the layer's norm and its residual.
      window: The number of tokens of its document that a token sees, including itself; None means
        all. Tokens are counted, not positions, which may be drawn or interpolated.
      chunk: The number of tokens in a chunk of a document: a token sees only its own chunk.
      log_n: The scaling of attention by log n, or None. n is the number of tokens that a token sees
        in this layer.
    """

    mixer: Mixer = Attention()
    window: int | None = None
    chunk: int | None = None
    log_n: LogN | None = None

    def __post_init__(self) -> None:
        Mask(window=self.window, chunk=self.chunk)  # raises if one is not positive
        for field in dataclasses.fields(LayerOptions):
            unused = getattr(self, field.name) != field.default
            if unused and field.name not in ("mixer", *self.mixer.options):
                raise UserError(
                    f"{field.name} = {getattr(self, field.name)} has no effect on layers with "
                    f"{type(self.mixer).__name__}: remove it"
                )


@dataclasses.dataclass(frozen=True)
class Turn(LayerOptions):
    """One of the alternating kinds of layer.

    Attributes:
      encoding: The positional encoding.
      causal: Whether a token sees only itself and earlier tokens. A decoder needs this.
    """

    encoding: PositionalEncoding
    causal: bool = True

    @property
    def evaluation_fields(self) -> tuple[str, ...]:
        """The fields that may change after training, as trained parameters do not depend on it."""
        learned = self.log_n is not None and self.log_n.learned
        return () if learned or "log_n" not in self.mixer.options else ("log_n",)

    @property
    def mask(self) -> Mask:
        return Mask(self.causal, self.window, self.chunk)


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
        super().__post_init__()
        if self.count < 1:
            raise UserError(f"Layers.count is {self.count}: it must be 1 or more")

    def turns(self, size: ModelSize, train_length: int) -> list[Turn]:
        """Return one `Turn` for each of the layers."""
        encoding = self.encoding(
            num_heads=size.num_heads,
            head_dim=size.head_dim,
            train_length=train_length,
            hidden_size=size.hidden_size,
        )
        options = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(LayerOptions)
        }
        return [Turn(encoding, **options)] * self.count
