"""The construction of decoders and encoders, with checks that their settings are compatible."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp

from fire_lm.attention import Implementation, announce
from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder, Remat
from fire_lm.models.dropout import check_rate
from fire_lm.models.layer_position import has_parameters
from fire_lm.models.mixers import Attention, Mixer
from fire_lm.models.sizes import ModelSize, check_size
from fire_lm.models.turns import Kind, Layers, Turn
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import HOOKS
from fire_lm.positions.contract import check_definition
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import Resampling

# The hooks of an encoding that a mixer calls.
HOOKS_IN_LAYERS = tuple(hook for hook in HOOKS if hook != "embed")


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
    if resampling != Resampling() and not any(each.uses_positions for each in encodings):
        names = ", ".join(type(each).__name__ for each in encodings)
        announce(f"{type(resampling).__name__} has no effect, because {names} uses no positions")
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


def build_encoder(decoder: Decoder) -> Decoder:
    """Return `decoder` with tokens that see later tokens too, and each encoding's form for that.

    The result is an encoder with a head on every position; it cannot generate text.

    Raises:
      UserError: An encoding or a mixer has no bidirectional form, or "tpu" attention is requested.
    """
    if decoder.attention == "tpu":
        raise UserError(
            "build_decoder.attention = 'tpu' is for causal attention only: an encoder needs "
            "'auto', 'dense' or 'blockwise'"
        )
    for turn in decoder.turns:
        if "bidirectional" not in turn.mixer.options:
            raise UserError(
                f"{type(turn.mixer).__name__} reads tokens from left to right: an encoder needs "
                "another mixer"
            )
    return decoder.clone(
        turns=tuple(
            dataclasses.replace(turn, encoding=turn.encoding.bidirectional(), causal=False)
            for turn in decoder.turns
        )
    )


def check_fit(
    encoding: PositionalEncoding,
    encodings: int,
    train_length: int,
    resampling: Resampling,
    share_position: bool,
) -> None:
    """Raise UserError if `encoding` is wrong, or not compatible with the other settings.

    `encodings` is the number of encodings that alternate by layer.
    """
    check_definition(encoding)
    kind = type(encoding)
    if encoding.acts_through("embed"):
        if encodings > 1:
            raise UserError(
                f"{kind.__name__} acts on the embedding, which all layers share: it cannot "
                "alternate with other encodings in build_decoder.position"
            )
        embedding = [part for part in _single(encoding) if part.acts_through("embed")]
        if not share_position and any(map(has_parameters, embedding)):
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


def _single(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    """Return the encodings that an encoding combines, or the encoding itself."""
    return [one for part in encoding.parts.values() for one in _single(part)] or [encoding]


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
        turns += layers.turns(size, train_length)
    if mixer != Attention() and not any(turn.mixer == Attention() for turn in turns):
        raise UserError(
            f"build_decoder.mixer = {type(mixer).__name__} has no effect, because all layers have "
            "a mixer or options of attention of their own: remove one of them"
        )
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
        acts = any(map(turn.encoding.acts_through, HOOKS_IN_LAYERS))
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
        encodings = [turn.encoding for turn in turns if turn.log_n == log_n]
        if log_n.on != "logits" and not any(each.acts_through("bias") for each in encodings):
            names = ", ".join(type(each).__name__ for each in encodings)
            raise UserError(
                f"LogN.on = '{log_n.on}', but there is no bias to scale ({names}): set LogN.on = "
                "'logits'"
            )
        if train_length < 2:
            raise UserError(f"TRAIN_LENGTH is {train_length}: LogN needs 2 or more")
