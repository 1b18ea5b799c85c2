"""The construction of a decoder, with checks that its settings are compatible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from fire_lm.attention import Implementation
from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder, Remat
from fire_lm.models.dropout import check_rate
from fire_lm.models.layer_position import has_parameters
from fire_lm.models.sizes import ModelSize, check_size
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import Resampling


def build_decoder(
    size: ModelSize,
    position: Callable[..., PositionalEncoding] | tuple[Callable[..., PositionalEncoding], ...],
    vocab_size: int,
    train_length: int,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    remat: Remat = "none",
    scan_layers: bool = True,
    attention: Implementation = "auto",
    log_n: LogN | None = None,
    resampling: Resampling = Resampling(),  # noqa: B008 (frozen)
    share_position: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> Decoder:
    """Build a decoder whose encodings receive the decoder's shape and the training length.

    `position` is the class of an encoding, or any callable with the same signature. Several
    encodings alternate by layer: `(RoPE, RoPE, RoPE, NoPE)` uses NoPE in every fourth layer.
    `train_length` is a number of tokens. `Decoder` describes the other arguments.

    Raises:
      UserError: The encodings, layer schedule, resampling and scaling are not compatible.
    """
    check_size("vocab_size", vocab_size)
    check_rate("build_decoder.dropout", dropout)
    check_rate("build_decoder.attention_dropout", attention_dropout)
    kinds = position if isinstance(position, tuple) else (position,)
    encodings = tuple(
        kind(
            num_heads=size.num_heads,
            head_dim=size.head_dim,
            train_length=train_length,
            hidden_size=size.hidden_size,
        )
        for kind in kinds
    )
    if not encodings or size.num_layers % len(encodings):
        raise UserError(
            f"build_decoder.position names {len(encodings)} alternating encodings: their number "
            f"must divide the {size.num_layers} layers of the model"
        )
    for encoding in encodings:
        check_fit(encoding, len(encodings), train_length, resampling, share_position)
    if log_n is not None:
        check_log_n(log_n, encodings, train_length)
    return Decoder(
        size=size,
        encodings=encodings,
        vocab_size=vocab_size,
        dtype=jnp.dtype(dtype),
        remat=remat,
        scan_layers=scan_layers,
        attention=attention,
        log_n=log_n,
        resampling=resampling,
        share_position=share_position,
        dropout=dropout,
        attention_dropout=attention_dropout,
    )


def check_fit(
    encoding: PositionalEncoding,
    turns: int,
    train_length: int,
    resampling: Resampling,
    share_position: bool,
) -> None:
    """Raise UserError if settings do not suit `encoding`; `turns` is the number of encodings."""
    kind, base = type(encoding), PositionalEncoding
    if kind.embed is not base.embed:
        if turns > 1:
            raise UserError(
                f"{kind.__name__} acts on the embedding, of which there is only one: it cannot "
                "alternate with other encodings"
            )
        if not share_position and has_parameters(encoding):
            raise UserError(
                f"{kind.__name__} has parameters for the embedding, of which there is only one: "
                "set build_decoder.share_position = True"
            )
    if resampling.float_positions and encoding.integer_positions:
        raise UserError(
            f"{type(resampling).__name__} gives positions between integers, which "
            f"{kind.__name__} cannot encode: choose another encoding or @RandomizedPositions()"
        )
    encoding.check_length(resampling.largest(train_length), train_length)


def check_log_n(log_n: LogN, encodings: tuple[PositionalEncoding, ...], train_length: int) -> None:
    """Raise UserError if `log_n` scales a bias that no encoding has, or if its base would be 1."""
    kinds = [type(encoding) for encoding in encodings]
    if log_n.on != "logits" and all(kind.bias is PositionalEncoding.bias for kind in kinds):
        raise UserError(
            f"LogN.on = '{log_n.on}', but there is no bias to scale in "
            f"{', '.join(kind.__name__ for kind in kinds)}: set LogN.on = 'logits'"
        )
    if train_length < 2:
        raise UserError(f"LogN needs TRAIN_LENGTH of 2 or more, got {train_length}")
