"""The cost of each encoding in the forward pass and in the training step of a model (Fig. 5).

The benchmark compiles two programs, by default for one device: the one that scores a batch in a
length sweep (logits and the loss of each token), and the training step of `pretrain` (forward,
backward and AdamW). The number of tokens in a batch is about the same for every length, unless a
single sequence is longer.
Fig. 5 of the paper measures only the forward pass of the base model at length 2048, as the mean of
10 runs on 4 TPUv2 chips; `--protocol=paper` therefore takes the mean over the rounds on all devices
of the host.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from fire_lm import sharding
from fire_lm.attention import choose_implementation
from fire_lm.bench.arguments import check
from fire_lm.bench.encodings import ENCODINGS
from fire_lm.bench.machine import clock, load, machine
from fire_lm.bench.one_attention import temp_bytes
from fire_lm.bench.race import Case, Results, Row, costs, counterparts, race
from fire_lm.bench.shared_states import States
from fire_lm.bench.tables import Column, machine_text, publish, short_cost_columns, table
from fire_lm.bench.workload import Workload, models, workload_for
from fire_lm.errors import RunFailed, UserError
from fire_lm.hardware.flops import FLOPS_CONVENTION, peak_flops
from fire_lm.measures import compile_scoring, sequences_at_a_time
from fire_lm.models import Decoder
from fire_lm.training import AdamW, Spikes, compile_training, model_flops_per_token

TRAIN_STEPS = 600_000  # as in the paper; the few measured steps stay at the start of the warm-up
DESCRIPTION = (
    "{name}: {size.num_layers} layers, {size.hidden_size} wide, {size.num_heads} heads "
    "of {size.head_dim}, vocabulary of {vocab_size:,}; {dtype}; forward = loss of every token; "
    "train = forward, backward, AdamW"
)


def bench(arguments: argparse.Namespace, peer: ModuleType | None = None) -> Row:
    """Run the measurements, print and return the report, and write it as JSON if requested."""
    check(arguments, encodings=list(ENCODINGS))
    if peer is not None:
        if arguments.protocol == "paper":
            raise UserError("--peer and --protocol=paper exclude each other: omit one of them")
        peer.start(jax.default_backend())
    load_before = load()
    workload = workload_for(arguments.size, arguments.tokens_per_batch, arguments.protocol)
    states = States(AdamW().build(TRAIN_STEPS), workload.mesh)
    left_out: list[str] = []
    selected = arguments.encodings, arguments.lengths
    try:
        cases = [
            build(name, model, length, workload, states)
            for name, model, length in models(*selected, workload, states, left_out, check_length)
        ]
        twins = [] if peer is None else list(twins_of(cases, peer, workload, states))
        times = race([*cases, *twins], arguments.rounds)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RunFailed(
            "the device has run out of memory: lower --tokens_per_batch "
            f"(now {workload.tokens_per_batch // workload.mesh.size}) or the largest of --lengths"
        ) from error
    pairs = [] if peer is None else counterparts([*cases, *twins], peer.NAME)
    report: Row = {
        "benchmark": "model",
        "machine": machine(load_before, {} if peer is None else {peer.NAME: peer.VERSION}),
        "size": arguments.size,
        "vocab_size": workload.vocab_size,
        "dtype": workload.dtype,
        "tokens_per_batch": workload.tokens_per_batch,
        "model": DESCRIPTION.format(name=arguments.size, **workload._asdict()),
        "flops_convention": FLOPS_CONVENTION,
        "rows": [row_of(case, times, workload) for case in cases],
        "peer": peer.NAME if peer else "",
        "peers": [beside(case, twin, times) for case, twin in pairs],
        "left_out": left_out,
        "protocol": workload.protocol,
        "devices": workload.mesh.size,
    }
    publish(arguments.json, report, text(report))
    return report


def check_length(model: Decoder, length: int) -> None:
    model.encodings[0].check_length(length, length)


def build(name: str, model: Decoder, length: int, workload: Workload, states: States) -> Case:
    mesh, tokens = workload.mesh, workload.tokens_per_batch
    batch_size = sequences_at_a_time(length, tokens, mesh)
    forward = compile_scoring(model, mesh, packed=False, length=length, tokens_per_batch=tokens)
    train = compile_training(
        model,
        states.optimizer,
        mesh,
        packed=False,
        batch_size=batch_size,
        row_length=length,
        z_loss=0.0,
        microbatches=1,
        spikes=Spikes(),
    )
    ids = random_tokens(batch_size, length, workload)
    seed = sharding.put_scalar(np.uint32(0), mesh)
    batch = sharding.put_batch({"targets": ids, "weights": np.ones_like(ids, np.int8)}, mesh)

    def score() -> object:
        params = states.of(name).params
        return jax.block_until_ready(forward(params, batch["targets"], batch["weights"]))

    def update() -> None:
        state, metrics = train(states.of(name), batch, seed)
        states.replace(name, state)
        jax.block_until_ready((state, metrics))

    return Case(
        name,
        length,
        calls={"forward": score, "train": update},
        memory={"forward": temp_bytes(forward), "train": temp_bytes(train)},
        kind={"library": "fire_lm"},
        facts={
            "batch": batch_size,
            "attention": choose_implementation(model.attention, length),
            "flops_per_token": model_flops_per_token(model, states.of(name).params, length),
        },
    )


def twins_of(
    cases: Sequence[Case], peer: ModuleType, workload: Workload, states: States
) -> Iterator[Case]:
    """Yield the training step of each case that the peer has; all lengths share a model."""
    twins: dict[str, Any] = {}
    for case in cases:
        if case.name not in peer.ATTENTIONS:
            continue
        if case.name not in twins:
            twins[case.name] = peer.Pretrained(
                case.name, workload.size, workload.vocab_size, AdamW(), workload.dtype
            )
            twins[case.name].load(jax.tree.map(np.asarray, states.of(case.name).params))
        twin = twins[case.name]
        text = twin.tokens(random_tokens(case.facts["batch"], case.length, workload))
        train = functools.partial(twin.train, text)
        yield Case(case.name, case.length, {"train": train}, kind={"library": peer.NAME})


def beside(case: Case, twin: Case, times: Results) -> Row:
    """Return our seconds for a training step divided by those of the peer."""
    ours, theirs = (min(times[key]["train"].of(clock())) for key in (case.key, twin.key))
    return {"encoding": case.name, "length": case.length, "train": ours / theirs}


def random_tokens(batch_size: int, length: int, workload: Workload) -> np.ndarray:
    """Return random token ids `[B, T]`, int32, without the padding id 0."""
    draw = np.random.default_rng(length)
    return draw.integers(1, workload.vocab_size, (batch_size, length), np.int32)


def row_of(case: Case, times: Results, workload: Workload) -> Row:
    """Return the row of an encoding at one length; `tokens_per_second` is of all devices together.

    `attention` is the implementation that "auto" selected.
    """
    spent = costs(case, times, clock(), workload.protocol)
    batch, attention, flops_per_token = case.facts.values()
    rate = batch * case.length / spent["train"]["seconds"]
    kind = jax.devices()[0].device_kind
    return {
        **{"encoding": case.name, "length": case.length, "batch": batch, "attention": attention},
        **{name: spent[name] for name in ("forward", "train")},
        "tokens_per_second": rate,
        "mfu": utilisation(rate / workload.mesh.size, flops_per_token, kind),
    }


def utilisation(tokens_per_second: float, flops_per_token: float, device_kind: str) -> float | None:
    """Return the model FLOPs utilisation of one device, or None if its peak is unknown."""
    peak = peak_flops(device_kind)
    return None if peak is None else tokens_per_second * flops_per_token / peak


def statistic(report: Row) -> str:
    """Describe how the seconds of a report follow from its rounds."""
    rounds = len(report["rows"][0]["train"]["rounds_s"])
    name = "mean" if report["protocol"] == "paper" else "minimum"
    return f"{name} of {rounds} round{'s' * (rounds > 1)}"


def text(report: Row) -> str:
    """Format one table per length, followed by a description of the numbers."""
    parts = [machine_text(report["machine"]), report["model"]]
    has_mfu = any(row["mfu"] is not None for row in report["rows"])
    columns = [*COLUMNS, Column("MFU", "mfu", ".1%")] if has_mfu else COLUMNS
    for _, rows in itertools.groupby(report["rows"], key=lambda row: row["length"]):
        same = list(rows)
        title = "length {length}, batch size {batch}, attention {attention}".format(**same[0])
        parts.append(f"{title}\n{table(same, columns)}")
    if report.get("peers"):  # older reports have none
        ratio = [Column(f"ours / {report['peer']}", "encoding"), Column("length", "length")]
        parts.append(table(report["peers"], [*ratio, Column("train", "train", ".2f")]))
    devices = "one device" if report["devices"] == 1 else f"{report['devices']} devices"
    notes = [
        f"Milliseconds of {report['machine']['clock']} time on {devices}, {statistic(report)}, "
        "interleaved; max/min: the spread of train ms; tokens/s: the training throughput."
    ]
    if has_mfu:
        notes.append(f"MFU: FLOPs per token = {report['flops_convention']}.")
    notes += [f"skipped: {reason}" for reason in report["left_out"]]
    return "\n\n".join([*parts, "\n".join(notes)])


COLUMNS = [
    *(Column("", "encoding"), *short_cost_columns("forward"), *short_cost_columns("train")),
    *(Column("max/min", "train.spread", ".2f"), Column("tokens/s", "tokens_per_second", ",.0f")),
]
