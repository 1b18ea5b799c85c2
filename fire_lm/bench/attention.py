"""A side-by-side comparison of the encodings' time and memory in a decoder of two layers.

The model is `models.Decoder` itself, with two layers of `size_125m` and a vocabulary of 256, in
float32 with batch size 1. A training step consists of a forward pass, a backward pass and plain
SGD. All contestants, including those of another library, take turns in one process, so that a slow
minute affects all of them. The best round of each contestant counts, because other activity on the
machine only adds time. On a CPU, times are the CPU seconds of the process on its single core; on an
accelerator, they are wall time.

Shapes: B batch, T positions, N heads, H head dim.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention import Implementation
from fire_lm.bench import tables
from fire_lm.bench.arguments import check_json, check_names, write_json
from fire_lm.bench.encodings import ENCODINGS, TRAIN_LENGTH
from fire_lm.bench.machine import clock, load, machine, say
from fire_lm.bench.one_attention import accuracy, memory, temp_bytes
from fire_lm.bench.rounds import Clock, Times, cost, race
from fire_lm.bench.tables import Entry, PeerRow, Report, Row
from fire_lm.errors import UserError
from fire_lm.models import Decoder, ModelSize, build_decoder, size_125m, token_losses

SIZE = size_125m(num_layers=2)
VOCAB_SIZE = 256
LEARNING_RATE = 1e-3
MATMUL_SIZE = 2048
DESCRIPTION = (
    "{size.num_layers} layers, {size.hidden_size} wide, {size.num_heads} heads of {size.head_dim}; "
    "float32, batch 1; train = forward, backward, SGD"
)


@dataclasses.dataclass(frozen=True)
class Contestant(Entry):
    """A model to measure; each of its calls returns only when the work is done.

    Attributes:
      logits: Returns the logits `[1, T, V]` of `tokens(T)`.
      forward: Computes the same logits, but leaves them on the device.
      train: Performs one step: a forward pass, a backward pass and SGD.
      temp_bytes: The temporary memory that the compiler reserves for `forward` and for `train`, or
        None where the compiler does not report it.
    """

    logits: Callable[[], np.ndarray]
    forward: Callable[[], object]
    train: Callable[[], object]
    temp_bytes: tuple[int | None, int | None] = (None, None)


def bench(arguments: argparse.Namespace, peer: ModuleType | None, size: ModelSize = SIZE) -> Report:
    """Run the measurements, print and return the report, and write it as JSON if requested."""
    check_names(arguments.encodings, list(ENCODINGS), "--encodings")
    check_names(arguments.implementations, list(get_args(Implementation)), "--implementations")
    check_json(arguments.json)
    if not arguments.implementations:
        raise UserError("--implementations: give at least one, such as blockwise")
    if peer is not None:
        peer.start(jax.default_backend())
    load_before = load()
    lengths = list(dict.fromkeys(arguments.lengths))
    implementations = cast(list[Implementation], list(dict.fromkeys(arguments.implementations)))
    contestants: list[Contestant] = []
    for name in dict.fromkeys(["nope", *arguments.encodings]):
        contestants += build(name, lengths, implementations, peer, size)
    logits = {c.key: c.logits() for c in contestants}  # before any contestant trains

    matmuls = matmul_calls(peer)
    times = race({**matmuls, **calls(contestants)}, arguments.rounds, say)
    rows = [row_of(contestant, times, clock()) for contestant in contestants]
    speeds = {name: 2e-9 * MATMUL_SIZE**3 / min(times[name].of(clock())) for name in matmuls}
    report = Report(
        description=DESCRIPTION.format(size=size),
        machine=machine(load_before, {} if peer is None else {peer.NAME: peer.VERSION}),
        matmul_size=MATMUL_SIZE,
        matmul_gflops={name.split()[0]: speed for name, speed in speeds.items()},
        rows=rows,
        peers=[] if peer is None else list(against(peer.NAME, rows, logits)),
        memory=[
            row for name in implementations for row in memory(arguments.memory, name, size, say)
        ],
        accuracy=[accuracy(name, size) for name in implementations],
    )
    print(tables.text(report))
    write_json(arguments.json, report)
    return report


def build(
    name: str,
    lengths: Sequence[int],
    implementations: Sequence[Implementation],
    peer: ModuleType | None,
    size: ModelSize,
) -> Iterator[Contestant]:
    """Yield our contestants and the peer's for one encoding, all with the same initial weights."""
    state: dict[str, Any] = {}
    for implementation in implementations:
        model = decoder(name, implementation, size)
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
            yield Contestant(
                *(peer.NAME, name, length, peer.IMPLEMENTATION),
                logits=functools.partial(twin.logits, text),
                forward=functools.partial(twin.forward, text),
                train=functools.partial(twin.train, text),
            )


def decoder(name: str, implementation: Implementation, size: ModelSize) -> Decoder:
    encoding, shared = ENCODINGS[name]
    return build_decoder(
        size,
        encoding,
        VOCAB_SIZE,
        TRAIN_LENGTH,
        dtype="float32",
        attention=implementation,
        share_position=shared,
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


def ours(name: str, model: Decoder, state: dict[str, Any], length: int) -> Contestant:
    """Build our contestant; all lengths share `state["params"]`, which training updates."""
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

    return Contestant(
        *("fire_lm", name, length, model.attention),
        logits=lambda: np.asarray(forward(state["params"], text)),
        forward=lambda: jax.block_until_ready(forward(state["params"], text)),
        train=update,
        temp_bytes=(temp_bytes(forward), temp_bytes(train)),
    )


def matmul_calls(peer: ModuleType | None) -> dict[str, Callable[[], object]]:
    """Return, for each library, a call that multiplies two square float32 matrices."""
    square = jax.random.normal(jax.random.key(0), (MATMUL_SIZE, MATMUL_SIZE), jnp.float32)
    product = jax.jit(jnp.matmul)
    found: dict[str, Callable[[], object]] = {
        "jax matmul": lambda: jax.block_until_ready(product(square, square))
    }
    if peer is not None:
        found[f"{peer.NAME} matmul"] = peer.matmul(MATMUL_SIZE)
    return found


def calls(contestants: Sequence[Contestant]) -> dict[str, Callable[[], object]]:
    return {
        f"{contestant.key} {what}": call
        for contestant in contestants
        for what, call in (("forward", contestant.forward), ("train", contestant.train))
    }


def row_of(contestant: Contestant, times: dict[str, Times], clock: Clock) -> Row:
    nope = dataclasses.replace(contestant, encoding="nope")
    forward, train = (
        cost(times[f"{contestant.key} {what}"], times[f"{nope.key} {what}"], clock, temp_bytes)
        for what, temp_bytes in zip(("forward", "train"), contestant.temp_bytes, strict=True)
    )
    entry = (contestant.library, contestant.encoding, contestant.length, contestant.implementation)
    return Row(*entry, forward, train)


def against(peer: str, rows: Sequence[Row], logits: dict[str, np.ndarray]) -> Iterator[PeerRow]:
    """Yield our times divided by the peer's, for each of our rows with a counterpart."""
    theirs = {(row.encoding, row.length): row for row in rows if row.library == peer}
    for row in rows:
        other = theirs.get((row.encoding, row.length))
        if other is None or row is other:
            continue
        yield PeerRow(
            *(peer, row.encoding, row.length, row.implementation),
            forward=row.forward.seconds / other.forward.seconds,
            train=row.train.seconds / other.train.seconds,
            logit_difference=float(np.max(np.abs(logits[row.key] - logits[other.key]))),
        )
