"""The encodings that benchmarks compare, defined as in configs/positions, but without gin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

from fire_lm.attention import Implementation
from fire_lm.models import Decoder, ModelSize, build_decoder
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.bam import BAM
from fire_lm.positions.dape import DAPE
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fox import FoX
from fire_lm.positions.kerple import KERPLELog
from fire_lm.positions.learned import Learned
from fire_lm.positions.nope import NoPE
from fire_lm.positions.pope import PoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.sandwich import Sandwich
from fire_lm.positions.sinusoidal import Sinusoidal
from fire_lm.positions.t5 import T5
from fire_lm.positions.together import Together

# The paper's training length. FIRE's threshold is derived from it, whatever the measured length.
TRAIN_LENGTH = 2048

_SLOW_GATES = functools.partial(FoX, init_bias=5.0)

# Maps each name to the encoding and to whether all layers share the encoding's parameters.
ENCODINGS: dict[str, tuple[Callable[..., PositionalEncoding], bool]] = {
    "nope": (NoPE, False),
    "fire": (FIRE, False),
    "fire_s": (FIRE, True),
    "fire_g": (functools.partial(FIRE, init_gamma=1.0), False),
    "fire_t": (
        functools.partial(
            FIRE, learn_L=False, init_L="train_length", normalizer_limit="train_length"
        ),
        False,
    ),
    "fire_appendix_e": (functools.partial(FIRE, hidden_layers=1, init_L=512.0), False),
    "alibi": (ALiBi, False),
    "t5": (T5, True),
    "kerple_log": (KERPLELog, True),
    "sandwich": (Sandwich, False),
    "rope": (RoPE, False),
    "fox": (FoX, False),
    "fox_fire": (functools.partial(Together, first=FIRE, second=_SLOW_GATES), False),
    "fox_kerple": (functools.partial(Together, first=KERPLELog, second=_SLOW_GATES), False),
    "fox_rope": (functools.partial(Together, first=RoPE, second=_SLOW_GATES), False),
    "pope": (PoPE, False),
    "pope_fire": (functools.partial(Together, first=FIRE, second=PoPE), False),
    "dape_fire": (functools.partial(Together, first=FIRE, second=DAPE), False),
    "bam": (BAM, True),
    "sinusoidal": (Sinusoidal, False),
    "learned": (Learned, True),
}


def decoder(
    name: str,
    size: ModelSize,
    vocab_size: int,
    dtype: Literal["bfloat16", "float32"] = "float32",
    attention: Implementation = "auto",
) -> Decoder:
    encoding, shared = ENCODINGS[name]
    return build_decoder(
        size,
        encoding,
        vocab_size,
        TRAIN_LENGTH,
        dtype=dtype,
        attention=attention,
        share_position=shared,
    )
