"""A small experiment for the tests of fire_lm.config: configurables, gin files, a loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from fire_lm import config


@dataclasses.dataclass(frozen=True)
class FIRE:
    num_heads: int
    hidden_layers: tuple[int, ...] = (32, 32)
    init_length: float = 512.0


@dataclasses.dataclass(frozen=True)
class RoPE:
    num_heads: int
    base: float = 1e4


@dataclasses.dataclass(frozen=True)
class TextData:
    vocabulary: str
    batch: int
    directory: str | None = None
    protocol: Literal["full", "last256"] = "full"
    shuffle: bool = True


@dataclasses.dataclass(frozen=True)
class Decoder:
    position: Any
    layers: int


def build_decoder(position: Callable[..., Any], layers: int = 2) -> Decoder:
    return Decoder(position(num_heads=4), layers)


def pretrain(
    workdir: str,
    data: TextData,
    decoder: Decoder,
    steps: int,
    learning_rate: float = 1e-3,
    lengths: Sequence[int] = (),
    dry_run: bool = False,
) -> dict[str, Any]:
    return dict(locals())


def length_sweep(lengths: tuple[int, ...], decoder: Decoder, data: TextData) -> dict[str, Any]:
    return dict(locals())


CONFIGURABLES: dict[str, Callable[..., Any]] = {
    "FIRE": FIRE,
    "RoPE": RoPE,
    "TextData": TextData,
    "build_decoder": build_decoder,
    "pretrain": pretrain,
    "length_sweep": length_sweep,
}
ROOTS = ("pretrain", "length_sweep")
NO_POSITION = "no positional encoding chosen: add --gin_file=configs/positions/NAME.gin"

BASE = """\
TRAIN_STEPS = 6e5
BATCH_SIZE = 8
DATA_DIR = None
EVAL_LENGTHS = [512, 1024]
pretrain.steps = %TRAIN_STEPS
pretrain.data = @TextData()
pretrain.decoder = @build_decoder()
pretrain.learning_rate = 3e-4
TextData.vocabulary = 'bytes'
TextData.batch = %BATCH_SIZE
TextData.directory = %DATA_DIR
TextData.shuffle = False
TextData.protocol = 'last256'
build_decoder.position = %POSITION
length_sweep.lengths = %EVAL_LENGTHS
length_sweep.decoder = @build_decoder()
length_sweep.data = @eval/TextData()
eval/TextData.batch = 2
"""
FIRE_GIN = "POSITION = @FIRE\nFIRE.hidden_layers = (32,)\n"
ROPE_GIN = "POSITION = @RoPE\nRoPE.base = 5e5\n"


def load(folder: Path, *bindings: str, **files: str) -> config.Config:
    """Load the gin texts `files` (by default, base and fire) and `bindings`."""
    files = files or {"base": BASE, "fire": FIRE_GIN}
    for name, text in files.items():
        (folder / f"{name}.gin").write_text(text)
    return config.load(
        config.read([f"{name}.gin" for name in files], bindings, [str(folder)]),
        configurables=CONFIGURABLES,
        roots=ROOTS,
        hints={"POSITION": NO_POSITION},
    )


def outcome(loaded: config.Config) -> tuple[Any, Any]:
    """Return all that the configuration determines: the arguments of both verbs."""
    return loaded.call("pretrain", workdir="w"), loaded.call("length_sweep")
