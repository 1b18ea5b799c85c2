"""The construction of a decoder, with checks that its settings are compatible."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp

from fire_lm.attention import Implementation
from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder, Remat
from fire_lm.models.dropout import check_rate
from fire_lm.models.layer_position import has_parameters
from fire_lm.models.mixers import Attention, Mixer
from fire_lm.models.sizes import ModelSize, check_size
from fire_lm.models.turns import Kind, Layers, Turn
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import Resampling


def build_decoder(
    size: ModelSize,
    position: Kind | Layers | tuple[Kind | Layers, ...],
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
    mixer: Mixer = Attention(),  # noqa: B008 (frozen)
) -> Decoder:
    """Build a decoder whose encodings receive the decoder's shape and the training length.

    `position` is the class of an encoding, or any callable with the same signature, or `Layers`,
    which sets further options. Several of them alternate by layer: `(RoPE, RoPE, RoPE, NoPE)`, or
    `(Layers(RoPE, count=3), NoPE)`, uses NoPE in every fourth layer. `train_length` is a number of
    tokens. `log_n` applies to all layers without a `log_n` of their own, and `mixer` to all layers
    with plain attention. `Decoder` describes the other arguments.

    Raises:
      UserError: A setting is out of range, or the settings are not compatible.
    """
    check_size("vocab_size", vocab_size)
    check_rate("build_decoder.dropout", dropout)
    check_rate("build_decoder.attention_dropout", attention_dropout)
    turns = turns_of(position, size, train_length, log_n, mixer)
    if not turns or size.num_layers % len(turns):
        raise UserError(
            f"build_decoder.position describes {len(turns)} alternating layers: this number must "
            f"divide the number of layers, {size.num_layers}"
        )
    encodings = dict.fromkeys(turn.encoding for turn in turns)
    for encoding in encodings:
        check_fit(encoding, len(encodings), train_length, resampling, share_position)
    check_mixers(turns, log_n, attention_dropout)
    check_log_n(turns, train_length)
    return Decoder(
        size=size,
        turns=turns,
        vocab_size=vocab_size,
        dtype=jnp.dtype(dtype),
        remat=remat,
        scan_layers=scan_layers,
        attention=attention,
        resampling=resampling,
        share_position=share_position,
        dropout=dropout,
        attention_dropout=attention_dropout,
    )


def check_fit(
    encoding: PositionalEncoding,
    encodings: int,
    train_length: int,
    resampling: Resampling,
    share_position: bool,
) -> None:
    """Raise UserError if `encoding` is not compatible with the other settings.

    `encodings` is the number of encodings that alternate by layer.
    """
    kind, base = type(encoding), PositionalEncoding
    if kind.embed is not base.embed:
        if encodings > 1:
            raise UserError(
                f"{kind.__name__} acts on the embedding, which all layers share: it cannot "
                "alternate with other encodings in build_decoder.position"
            )
        if not share_position and has_parameters(encoding):
            raise UserError(
                f"{kind.__name__} has parameters for the embedding, which all layers share: "
                "set build_decoder.share_position = True"
            )
    if resampling.float_positions and encoding.integer_positions:
        raise UserError(
            f"{type(resampling).__name__} draws positions between integers, which "
            f"{kind.__name__} cannot encode: choose another encoding or @RandomizedPositions()"
        )
    encoding.check_length(resampling.largest(train_length), train_length)


def turns_of(
    position: Kind | Layers | tuple[Kind | Layers, ...],
    size: ModelSize,
    train_length: int,
    log_n: LogN | None,
    mixer: Mixer = Attention(),  # noqa: B008 (frozen)
) -> tuple[Turn, ...]:
    """Return the turns that `build_decoder.position` describes."""
    kinds = position if isinstance(position, tuple) else (position,)
    turns: list[Turn] = []
    for kind in kinds:
        layers = kind if isinstance(kind, Layers) else Layers(kind)
        turns += layers.turns(size.num_heads, size.head_dim, train_length, size.hidden_size)
    turns = [
        dataclasses.replace(turn, mixer=mixer) if turn.mixer == Attention() else turn
        for turn in turns
    ]
    return tuple(
        dataclasses.replace(turn, log_n=log_n)
        if turn.log_n is None and "log_n" in turn.mixer.options
        else turn
        for turn in turns
    )


def check_mixers(turns: tuple[Turn, ...], log_n: LogN | None, attention_dropout: float) -> None:
    """Raise UserError if layers have a mixer that would ignore their encoding or a setting."""
    for turn in turns:
        encoding, mixer = type(turn.encoding), type(turn.mixer)
        acts = any(
            getattr(encoding, hook) is not getattr(PositionalEncoding, hook)
            for hook in ("rotate", "bias", "logit_scale", "log_decay")
        )
        if acts and "encoding" not in mixer.options:
            raise UserError(
                f"{encoding.__name__} has no effect on layers with {mixer.__name__}: "
                "set their Layers.encoding = @NoPE"
            )
        if attention_dropout and "attention_dropout" not in mixer.options:
            raise UserError(
                f"build_decoder.attention_dropout has no effect on layers with {mixer.__name__}: "
                "set it to 0"
            )
    if log_n is not None and not any("log_n" in turn.mixer.options for turn in turns):
        raise UserError("build_decoder.log_n has no effect on any layer: remove it")


def check_log_n(turns: tuple[Turn, ...], train_length: int) -> None:
    """Raise UserError if `log_n` has no bias to scale, or if `train_length` is below 2."""
    for log_n in dict.fromkeys(turn.log_n for turn in turns if turn.log_n is not None):
        kinds = [type(turn.encoding) for turn in turns if turn.log_n == log_n]
        if log_n.on != "logits" and all(kind.bias is PositionalEncoding.bias for kind in kinds):
            raise UserError(
                f"LogN.on = '{log_n.on}', but there is no bias to scale "
                f"({', '.join(kind.__name__ for kind in kinds)}): set LogN.on = 'logits'"
            )
        if train_length < 2:
            raise UserError(f"TRAIN_LENGTH is {train_length}: LogN needs 2 or more")
