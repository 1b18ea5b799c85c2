"""The models of `fire-lm bench model` and `generate`, and what their cases share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.bench.encodings import decoder
from fire_lm.bench.race import Protocol
from fire_lm.bench.shared_states import States
from fire_lm.console import say
from fire_lm.errors import UserError
from fire_lm.models import Decoder, ModelSize, size_125m, size_350m, size_tiny

# Maps each size to its vocabulary's size in configs/data: bytes for tiny, C4's for the others.
SIZES: dict[str, tuple[Callable[[], ModelSize], int]] = {
    "tiny": (size_tiny, 384),
    "125m": (size_125m, 32_128),
    "350m": (size_350m, 32_128),
}
TOKENS, TOKENS_ON_CPU = 8192, 2048


class Workload(NamedTuple):
    """The settings that all cases share."""

    size: ModelSize
    vocab_size: int
    dtype: Literal["bfloat16", "float32"]
    tokens_per_batch: int
    mesh: Mesh
    protocol: Protocol


def workload_for(
    name: str, tokens_per_batch: int | None = None, protocol: Protocol = "best"
) -> Workload:
    """Return the settings that all cases share.

    The argument `tokens_per_batch` is per device; the returned number is for all devices.
    """
    on_cpu = jax.default_backend() == "cpu"
    size, vocab_size = SIZES[name]
    devices = jax.local_devices() if protocol == "paper" else jax.local_devices()[:1]
    tokens = tokens_per_batch or (TOKENS_ON_CPU if on_cpu else TOKENS)
    return Workload(
        size(),
        vocab_size,
        "float32" if on_cpu else "bfloat16",  # CPUs have no fast bfloat16
        tokens * len(devices),
        sharding.mesh_of((len(devices), 1, 1), devices),
        protocol,
    )


def models(
    names: Sequence[str],
    lengths: Sequence[int],
    workload: Workload,
    states: States,
    left_out: list[str],
    check: Callable[[Decoder, int], object],
) -> Iterator[tuple[str, Decoder, int]]:
    """Yield each encoding's name and model for each length, starting with NoPE.

    Encodings that cannot handle a length, for which `check` raises UserError, are recorded in
    `left_out` instead. The state of a model is added to `states`.
    """
    for length in dict.fromkeys(lengths):
        for name in dict.fromkeys(["nope", *names]):
            model = decoder(name, workload.size, workload.vocab_size, workload.dtype)
            try:
                check(model, length)
            except UserError as error:
                left_out.append(f"{name} at {length}: {str(error).partition(chr(10))[0]}")
                continue
            say(f"compiling {name} {length}")
            states.add(name, model)
            yield name, model, length
