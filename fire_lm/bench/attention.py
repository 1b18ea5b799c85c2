"""The time and memory of each encoding in a decoder of two layers.

The model is `models.Decoder` itself, with two layers of `size_125m` and a vocabulary of 256, in
float32 with batch size 1. A training step consists of a forward pass, a backward pass and plain
SGD. All cases, including those of another library, take turns in one process, and the best round of
each counts (race.py). On a CPU, times are the CPU seconds of the process on its single core; on an
accelerator, they are wall time.

Shapes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention import Implementation
from fire_lm.bench.arguments import ATTENTION, check, check_implementations, completed
from fire_lm.bench.encodings import ENCODINGS, decoder
from fire_lm.bench.machine import clock, load, machine
from fire_lm.bench.one_attention import accuracy, memory, temp_bytes
from fire_lm.bench.race import Case, Results, Row, counterparts, race, row
from fire_lm.bench.tables import Column, cost_columns, machine_text, mebibytes, publish, table
from fire_lm.console import say
from fire_lm.models import Decoder, ModelSize, size_125m, token_losses

SIZE = size_125m(num_layers=2)
VOCAB_SIZE = 256
LEARNING_RATE = 1e-3
MATMUL_SIZE = 2048
DESCRIPTION = (
    "{size.num_layers} layers, {size.hidden_size} wide, {size.num_heads} heads of {size.head_dim}; "
    "float32, batch 1; train = forward, backward, SGD"
)


def bench(arguments: argparse.Namespace, peer: ModuleType | None, size: ModelSize = SIZE) -> Row:
    """Run the measurements, print and return the report, and write it as JSON if requested."""
    arguments = completed(arguments, list(ATTENTION))
    check(arguments, implementations=get_args(Implementation), encodings=list(ENCODINGS))
    check_implementations(arguments.implementations, jax.default_backend())
    if peer is not None:
        peer.start(jax.default_backend())
    load_before = load()
    implementations: list[Implementation] = arguments.implementations
    cases: list[Case] = []
    for name in dict.fromkeys(["nope", *arguments.encodings]):
        cases += build(name, arguments.lengths, implementations, peer, size)
    outputs = {case.key: case.output() for case in cases if case.output}  # before any model trains
    matmuls = list(matmul_cases(peer))
    times = race([*matmuls, *cases], arguments.rounds)
    rows = {case.key: row(case, times, clock()) for case in cases}
    pairs = [] if peer is None else counterparts(cases, peer.NAME)
    report: Row = {
        "description": DESCRIPTION.format(size=size),
        "machine": machine(load_before, {} if peer is None else {peer.NAME: peer.VERSION}),
        "matmul_size": MATMUL_SIZE,
        "matmul_gflops": {case.kind["library"]: gflops(case, times) for case in matmuls},
        "rows": list(rows.values()),
        "peers": [
            against(rows[case.key], rows[other.key], outputs[case.key] - outputs[other.key])
            for case, other in pairs
        ],
        "memory": [
            each for name in implementations for each in memory(arguments.memory, name, size)
        ],
        "accuracy": [accuracy(name, size) for name in implementations],
    }
    publish(arguments.json, report, text(report))
    return report


def build(
    name: str,
    lengths: Sequence[int],
    implementations: Sequence[Implementation],
    peer: ModuleType | None,
    size: ModelSize,
) -> Iterator[Case]:
    """Yield our cases and the peer's for one encoding, all with the same initial weights."""
    state: dict[str, Any] = {}
    for implementation in implementations:
        model = decoder(name, size, VOCAB_SIZE, attention=implementation)
        if not state:
            token = jnp.zeros((1, 1), jnp.int32)
            state["params"] = jax.jit(model.init)(jax.random.key(0), token, token)["params"]
        for length in lengths:
            say(f"compiling {name} {implementation} {length}")
            yield ours(name, model, state, length)
    if peer is not None and name in peer.ATTENTIONS:
        twin = peer.Peer(name, size, VOCAB_SIZE, LEARNING_RATE)
        twin.load(jax.tree.map(np.asarray, state["params"]))
        for length in lengths:
            text = twin.tokens(tokens(length))
            calls = {each: functools.partial(getattr(twin, each), text) for each in MEASURED}
            kind = {"library": peer.NAME, "implementation": peer.IMPLEMENTATION}
            output = functools.partial(twin.logits, text)
            yield Case(name, length, calls, kind=kind, output=output)


def ours(name: str, model: Decoder, state: dict[str, Any], length: int) -> Case:
    """Build our case; all lengths share `state["params"]`, which training updates."""
    text = jnp.asarray(tokens(length))
    # As in `fire-lm pretrain`, the step overwrites the parameters that it receives.
    jitted = (
        jax.jit(functools.partial(forward_logits, model)),
        jax.jit(functools.partial(sgd_step, model), donate_argnums=0),
    )
    forward, train = (function.lower(state["params"], text).compile() for function in jitted)

    def update() -> None:
        state["params"], loss = train(state["params"], text)
        jax.block_until_ready((state["params"], loss))

    return Case(
        name,
        length,
        calls={
            "forward": lambda: jax.block_until_ready(forward(state["params"], text)),
            "train": update,
        },
        memory={"forward": temp_bytes(forward), "train": temp_bytes(train)},
        kind={"library": "fire_lm", "implementation": model.attention},
        output=lambda: np.asarray(forward(state["params"], text)),
    )


def tokens(length: int) -> np.ndarray:
    """Return random token ids `[1, T]`, int32, without the padding id 0."""
    return np.random.default_rng(length).integers(1, VOCAB_SIZE, (1, length), np.int32)


def forward_logits(model: Decoder, params: Any, tokens_BT: jax.Array) -> jax.Array:
    pos_BT = model.resampling.evaluation_positions(tokens_BT.shape[1])
    return cast(jax.Array, model.apply({"params": params}, tokens_BT, pos_BT))


def sgd_step(model: Decoder, params: Any, targets_BT: jax.Array) -> tuple[Any, jax.Array]:
    """Return the parameters after one SGD step, and the mean loss in nats."""
    batch_size, length = targets_BT.shape
    pos_BT = model.resampling.training_positions(jax.random.key(0), batch_size, length)

    def mean_loss(params: Any) -> jax.Array:
        return jnp.mean(token_losses(model, params, targets_BT, pos_BT)[0])

    loss, gradient = jax.value_and_grad(mean_loss)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient), loss


def matmul_cases(peer: ModuleType | None) -> Iterator[Case]:
    """Yield, for each library, the product of two square float32 matrices."""
    square = jax.random.normal(jax.random.key(0), (MATMUL_SIZE, MATMUL_SIZE), jnp.float32)
    product = jax.jit(jnp.matmul)
    calls = {"jax": lambda: jax.block_until_ready(product(square, square))}
    if peer is not None:
        calls[peer.NAME] = peer.matmul(MATMUL_SIZE)
    for library, call in calls.items():
        yield Case("matmul", MATMUL_SIZE, {"multiply": call}, kind={"library": library})


def gflops(case: Case, times: Results) -> float:
    return 2e-9 * case.length**3 / min(times[case.key]["multiply"].of(clock()))


def against(row: Row, peer: Row, logit_difference: np.ndarray) -> Row:
    """Return our seconds divided by the peer's, and the largest difference between the logits.

    A small difference shows that the two models agree.
    """
    return {
        "peer": peer["library"],
        **{key: row[key] for key in ("encoding", "length", "implementation")},
        **{call: row[call]["seconds"] / peer[call]["seconds"] for call in MEASURED},
        "logit_difference": float(np.max(np.abs(logit_difference))),
    }


def text(report: Row) -> str:
    """Format the report, as returned by `bench` or read from its JSON file."""
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in report["matmul_gflops"].items())
    matmul = " x ".join([str(report["matmul_size"])] * 3)
    head = f"{machine_text(report['machine'])}\nfloat32 matmul {matmul}, GFLOP/s: {speeds}"
    tables = [
        f"{table(report[key], columns, words)}\n{note}".rstrip()
        for key, columns, words, note in TABLES
        if report[key]
    ]
    return "\n\n".join([head, report["description"], *tables])


MEASURED = ("forward", "train")
ENTRY = [Column("length", "length"), Column("attention", "implementation")]
# The key, the columns, the number of columns with words, and the note of each table.
TABLES: tuple[tuple[str, list[Column], int, str], ...] = (
    (
        "rows",
        [Column("", "library"), Column("encoding", "encoding"), *ENTRY]
        + [column for call in MEASURED for column in cost_columns(call)],
        4,
        "Seconds: CPU time on a CPU, else wall time, minimum over the interleaved rounds; max/min: "
        "the spread over the rounds; MiB: temporary memory of a call.",
    ),
    (
        "peers",
        [Column("ours / peer", "encoding"), *ENTRY, Column("peer", "peer")]
        + [Column(call, call, ".2f") for call in MEASURED]
        + [Column("logits differ", "logit_difference", ".0e")],
        4,
        "",
    ),
    (
        "memory",
        [Column("one FIRE attention", "implementation"), Column("length", "length")]
        + [mebibytes("forward MiB", "forward_bytes"), Column("growth", "forward_growth", ".2f")]
        + [mebibytes("gradient MiB", "gradient_bytes"), Column("growth", "gradient_growth", ".2f")],
        1,
        "Temporary memory, float32, batch 1.",
    ),
    (
        "accuracy",
        [Column("one FIRE attention", "implementation"), Column("length", "length")]
        + [Column(f"{what} error", f"{what}_error", ".0e") for what in ("output", "gradient")],
        1,
        "Errors relative to dense attention, float32.",
    ),
)
