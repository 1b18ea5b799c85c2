"""The cost of each encoding in the forward pass and in the training step of a model (Fig. 5).

The benchmark compiles two programs, by default for one device: the one that scores a batch in a
length sweep (logits and the loss of each token), and the training step of `pretrain` (forward,
backward and AdamW). The number of tokens in a batch is about the same for every length, unless a
single sequence is longer. Contestants take turns in one process, and the best round counts
(rounds.py).
Fig. 5 of the paper measures only the forward pass of the base model at length 2048, as the mean of
10 runs on 4 TPUv2 chips; `--protocol=paper` therefore takes the mean over the rounds on all devices
of the host.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.attention import choose_implementation
from fire_lm.bench import tables
from fire_lm.bench.arguments import check_json, check_names, write_json
from fire_lm.bench.encodings import ENCODINGS, TRAIN_LENGTH
from fire_lm.bench.machine import clock, load, machine, say
from fire_lm.bench.one_attention import temp_bytes
from fire_lm.bench.rounds import Protocol, Times, cost, race
from fire_lm.bench.shared_states import States
from fire_lm.errors import RunFailed, UserError
from fire_lm.hardware.flops import FLOPS_CONVENTION, peak_flops
from fire_lm.measures import compile_scoring, sequences_at_a_time
from fire_lm.models import Decoder, ModelSize, build_decoder, size_125m, size_350m, size_tiny
from fire_lm.results.bench_times import MODEL, ModelRow, ModelTimes
from fire_lm.training import AdamW, Spikes, compile_training, model_flops_per_token

# Maps each size to its vocabulary's size in configs/data: bytes for tiny, C4's for the others.
SIZES: dict[str, tuple[Callable[[], ModelSize], int]] = {
    "tiny": (size_tiny, 384),
    "125m": (size_125m, 32_128),
    "350m": (size_350m, 32_128),
}
TRAIN_STEPS = 600_000  # as in the paper; the few measured steps stay at the start of the warm-up
TOKENS, TOKENS_ON_CPU = 8192, 2048
DESCRIPTION = (
    "{name}: {size.num_layers} layers in a loop, {size.hidden_size} wide, {size.num_heads} heads "
    "of {size.head_dim}, vocabulary of {vocab_size:,}; {dtype}; forward = loss of every token; "
    "train = forward, backward, AdamW"
)


class Workload(NamedTuple):
    """The settings that all contestants share."""

    size: ModelSize
    vocab_size: int
    dtype: Literal["bfloat16", "float32"]
    tokens_per_batch: int
    mesh: Mesh
    protocol: Protocol


@dataclasses.dataclass(frozen=True)
class Contestant:
    """An encoding at one length; each of its calls returns only when the work is done.

    Attributes:
      flops_per_token: The training FLOPs per token, counted by `FLOPS_CONVENTION`.
      temp_bytes: The temporary memory that the compiler reserves for `forward` and for `train`, or
        None where the compiler does not report it.
    """

    encoding: str
    length: int
    batch: int
    attention: str
    forward: Callable[[], object]
    train: Callable[[], object]
    flops_per_token: float
    temp_bytes: tuple[int | None, int | None]


def bench(arguments: argparse.Namespace) -> ModelTimes:
    """Run the measurements, print and return the report, and write it as JSON if requested."""
    check_names(arguments.encodings, list(ENCODINGS), "--encodings")
    check_json(arguments.json)
    if not arguments.lengths:
        raise UserError("--lengths: give at least one, such as 2048")
    load_before = load()
    workload = workload_for(arguments.size, arguments.tokens_per_batch, arguments.protocol)
    left_out: list[str] = []
    try:
        contestants = list(build(arguments.encodings, arguments.lengths, workload, left_out))
        times = race(calls(contestants), arguments.rounds, say)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RunFailed(
            "the device has run out of memory: lower --tokens_per_batch "
            f"(now {workload.tokens_per_batch // workload.mesh.size}) or the largest of --lengths"
        ) from error
    report = ModelTimes(
        benchmark=MODEL,
        machine=machine(load_before, {}),
        size=arguments.size,
        vocab_size=workload.vocab_size,
        dtype=workload.dtype,
        tokens_per_batch=workload.tokens_per_batch,
        model=DESCRIPTION.format(name=arguments.size, **workload._asdict()),
        flops_convention=FLOPS_CONVENTION,
        rows=[row_of(contestant, times, workload) for contestant in contestants],
        left_out=left_out,
        protocol=workload.protocol,
        devices=workload.mesh.size,
    )
    print(tables.model_text(report))
    write_json(arguments.json, report)
    return report


def workload_for(name: str, tokens_per_batch: int | None, protocol: Protocol = "best") -> Workload:
    """Return the settings that all contestants share.

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


def build(
    encodings: Sequence[str], lengths: Sequence[int], workload: Workload, left_out: list[str]
) -> Iterator[Contestant]:
    """Yield the contestants of each length, starting with NoPE.

    Encodings that cannot handle a length are recorded in `left_out` instead.
    """
    optimizer = AdamW().build(TRAIN_STEPS)
    states = States(optimizer, workload.mesh)
    for length in dict.fromkeys(lengths):
        for name in dict.fromkeys(["nope", *encodings]):
            model = decoder(name, workload)
            try:
                model.encodings[0].check_length(length, length)
            except UserError as error:
                left_out.append(f"{name} at {length}: {str(error).partition(chr(10))[0]}")
                continue
            say(f"compiling {name} {length}")
            states.add(name, model)
            yield contestant(name, model, length, workload, states)


def decoder(name: str, workload: Workload) -> Decoder:
    encoding, shared = ENCODINGS[name]
    return build_decoder(
        workload.size,
        encoding,
        workload.vocab_size,
        TRAIN_LENGTH,
        dtype=workload.dtype,
        share_position=shared,
    )


def contestant(
    name: str, model: Decoder, length: int, workload: Workload, states: States
) -> Contestant:
    mesh, tokens = workload.mesh, workload.tokens_per_batch
    batch_size = sequences_at_a_time(length, tokens, mesh)
    forward = compile_scoring(model, mesh, packed=False, length=length, tokens_per_batch=tokens)
    train = compile_training(
        *(model, states.optimizer, mesh),
        packed=False,
        batch_size=batch_size,
        row_length=length,
        z_loss=0.0,
        microbatches=1,
        spikes=Spikes(),
    )
    shape = (batch_size, length)
    text = np.random.default_rng(length).integers(1, workload.vocab_size, shape, np.int32)
    seed = sharding.put_scalar(np.uint32(0), mesh)
    batch = sharding.put_batch({"targets": text, "weights": np.ones(shape, np.int8)}, mesh)

    def update() -> None:
        state, metrics = train(states.of(name), batch, seed)
        states.replace(name, state)
        jax.block_until_ready((state, metrics))

    return Contestant(
        *(name, length, batch_size, choose_implementation(model.attention, length)),
        forward=lambda: jax.block_until_ready(
            forward(states.of(name).params, batch["targets"], batch["weights"])
        ),
        train=update,
        flops_per_token=model_flops_per_token(model, states.of(name).params, length),
        temp_bytes=(temp_bytes(forward), temp_bytes(train)),
    )


def calls(contestants: Sequence[Contestant]) -> dict[str, Callable[[], object]]:
    return {
        f"{entry.encoding} {entry.length} {what}": call
        for entry in contestants
        for what, call in (("forward", entry.forward), ("train", entry.train))
    }


def row_of(entry: Contestant, times: dict[str, Times], workload: Workload) -> ModelRow:
    forward, train = (
        cost(
            times[f"{entry.encoding} {entry.length} {what}"],
            times[f"nope {entry.length} {what}"],
            clock(),
            temp_bytes,
            workload.protocol,
        )
        for what, temp_bytes in zip(("forward", "train"), entry.temp_bytes, strict=True)
    )
    rate = entry.batch * entry.length / train.seconds
    return ModelRow(
        *(entry.encoding, entry.length, entry.batch, entry.attention),
        forward=forward,
        train=train,
        tokens_per_second=rate,
        mfu=utilisation(
            rate / workload.mesh.size, entry.flops_per_token, jax.devices()[0].device_kind
        ),
    )


def utilisation(tokens_per_second: float, flops_per_token: float, device_kind: str) -> float | None:
    """Return the model FLOPs utilisation of one device, or None if its peak is unknown."""
    peak = peak_flops(device_kind)
    return None if peak is None else tokens_per_second * flops_per_token / peak
