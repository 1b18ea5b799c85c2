"""The cost of prefill and of each generated token, by encoding and relative to NoPE.

The benchmark compiles the two programs with which `fire-lm generate` streams its output: a prefill,
which also generates the first token, and a loop over further tokens, which reuses the memory of the
previous call's cache. Continuations do not end at a stop token. A peer, which always runs on the
CPU, generates one token and all tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fire_lm.bench.arguments import check
from fire_lm.bench.encodings import ENCODINGS
from fire_lm.bench.machine import clock, load, machine
from fire_lm.bench.one_attention import temp_bytes
from fire_lm.bench.race import Case, Results, Row, counterparts, race, row
from fire_lm.bench.shared_states import States
from fire_lm.bench.tables import Column, machine_text, mebibytes, publish, short_cost_columns, table
from fire_lm.bench.workload import Workload, models, workload_for
from fire_lm.errors import UserError
from fire_lm.generation import Greedy
from fire_lm.generation.generate import check_context
from fire_lm.generation.programs import Inputs, cache_bytes, call_for, go_on, start
from fire_lm.models import Decoder


def bench(arguments: argparse.Namespace, peer: ModuleType | None = None) -> Row:
    """Run the measurements, print and return the report, and write it as JSON if requested."""
    check(arguments, encodings=list(ENCODINGS))
    batch, new_tokens = arguments.batch_size, arguments.new_tokens
    if peer is not None and jax.default_backend() != "cpu":
        raise UserError(
            f"--peer torch generates on the CPU, but JAX runs on a {jax.default_backend()}: omit "
            "--peer, or set JAX_PLATFORMS=cpu"
        )
    if new_tokens < 2:
        raise UserError("--new_tokens must be 2 or more: the prefill generates the first token")
    load_before = load()
    workload = workload_for(arguments.size)
    size = workload.size
    states = States(optax.identity(), workload.mesh)  # only parameters, no optimizer moments
    left_out: list[str] = []

    def check_length(model: Decoder, length: int) -> None:
        check_context(model, length + new_tokens, length + new_tokens)

    selected = arguments.encodings, arguments.lengths
    cases = [
        case
        for name, model, length in models(*selected, workload, states, left_out, check_length)
        for case in build(
            name, model, states.of(name).params, length, batch, new_tokens, workload, peer
        )
    ]
    times = race(cases, arguments.rounds)
    pairs = list(counterparts(cases, peer.NAME)) if peer else []
    peers = [beside(case, other, times) for case, other in pairs]
    for case in cases:  # the first of the new tokens is part of the prefill
        if "token" in case.calls:
            times[case.key]["token"] = times[case.key]["token"].per(new_tokens - 1)
    report: Row = {
        "machine": machine(load_before, {}),
        "model": (
            f"{arguments.size}: {size.num_layers} layers, {size.hidden_size} wide, "
            f"{size.num_heads} heads, vocabulary of {workload.vocab_size:,}; {workload.dtype}"
        ),
        "batch": batch,
        "new_tokens": new_tokens,
        "rows": [row(case, times, clock()) for case in cases if "token" in case.calls],
        "left_out": left_out,
        "peer": peer.NAME if peer else "",
        "peers": peers,
    }
    publish(arguments.json, report, text(report))
    return report


def build(
    name: str,
    model: Decoder,
    params: Any,
    length: int,
    batch: int,
    new_tokens: int,
    workload: Workload,
    peer: ModuleType | None,
) -> Iterator[Case]:
    """Yield our case, and the peer's with the same weights and prompts."""
    context = length + new_tokens
    call = call_for(model, Greedy(), new_tokens, (), context, None)
    rng = np.random.default_rng(length)
    inputs = Inputs(
        jnp.asarray(rng.integers(1, workload.vocab_size, (batch, length), np.int32)),
        jnp.full(batch, length, jnp.int32),
        jax.random.key_data(jax.random.split(jax.random.key(0), batch)),
        model.resampling.evaluation_positions(context)[0],
    )
    prefill = start.lower(call, params, inputs).compile()
    state = prefill(params, inputs)
    more = jax.jit(go_on, static_argnums=0, donate_argnames="state")
    loop = more.lower(call, params, inputs, state, new_tokens).compile()

    def tokens() -> None:
        nonlocal state
        # The tokens of the previous call are masked and then overwritten.
        again = state._replace(step=jnp.int32(0))
        state = jax.block_until_ready(loop(params, inputs, again, new_tokens))

    yield Case(
        name,
        length,
        calls={"prefill": lambda: jax.block_until_ready(prefill(params, inputs)), "token": tokens},
        memory={"prefill": temp_bytes(prefill), "token": temp_bytes(loop)},
        kind={"library": "fire_lm"},
        facts={"cache_bytes": cache_bytes(call, params, inputs)},
        output=lambda: np.asarray(state.tokens_BKT[:, 0]),
    )
    if peer is not None:
        twin = peer.Peer(model, params, np.asarray(inputs.prompts_BP), new_tokens)
        first, every = twin.call(1), twin.call(new_tokens)
        calls = {"prefill": first, "all": every}
        yield Case(name, length, calls, kind={"library": peer.NAME}, output=every)


def beside(case: Case, peer: Case, times: Results) -> Row:
    """Return our seconds divided by the peer's, and how many of its tokens are those of ours.

    The ratio for a token compares the times of all tokens after the first. The peer's time for
    these tokens is the difference between its two calls in the same round, of which the median
    counts. The ratio is None if, in a round, all tokens took the peer no longer than the first.
    """
    ours, theirs = (
        {call: each.of(clock()) for call, each in times[entry.key].items()}
        for entry in (case, peer)
    )
    assert case.output is not None and peer.output is not None
    same = case.output() == peer.output()
    after_first = [a - b for a, b in zip(theirs["all"], theirs["prefill"], strict=True)]
    above_noise = min(after_first) > 0
    return {
        "encoding": case.name,
        "length": case.length,
        "prefill": min(ours["prefill"]) / min(theirs["prefill"]),
        "token": median(ours["token"]) / median(after_first) if above_noise else None,
        "same_tokens": int(same.sum()),
        "tokens": same.size,
    }


def text(report: Row) -> str:
    """Format the report, as returned by `bench` or read from its JSON file."""
    notes = [
        f"Milliseconds of {report['machine']['clock']} time on one device, minimum over the "
        f"interleaved rounds ({len(report['rows'][0]['token']['rounds_s'])}); max/min: the spread "
        f"of token ms; batch size {report['batch']}, {report['new_tokens']} new tokens; temp: "
        "temporary memory of the loop over new tokens, in addition to the cache.",
        *(f"skipped: {reason}" for reason in report["left_out"]),
    ]
    parts = [machine_text(report["machine"]), report["model"], table(report["rows"], COLUMNS)]
    if report["peers"]:
        notes.append(
            f"ours / {report['peer']}: for a token, medians over the rounds; -: in a round, all "
            "tokens took it no longer than the first."
        )
        columns = [Column(f"ours / {report['peer']}", "encoding"), *PEER_COLUMNS]
        parts.append(table(report["peers"], columns))
    return "\n\n".join([*parts, "\n".join(notes)])


COLUMNS = [
    *(Column("", "encoding"), Column("prompt", "length")),
    *(*short_cost_columns("prefill"), *short_cost_columns("token")),
    Column("max/min", "token.spread", ".2f"),
    mebibytes("cache MiB", "cache_bytes", ".1f"),
    mebibytes("temp MiB", "token.temp_bytes", ".1f"),
]
PEER_COLUMNS = [
    *(Column("prompt", "length"), Column("prefill", "prefill", ".2f")),
    *(Column("token", "token", ".2f"), Column("same tokens", "same_tokens")),
    Column("of", "tokens"),
]
