"""The cost of prefill and of each generated token, by encoding and relative to NoPE.

The benchmark compiles the two programs with which `fire-lm generate` streams its output: a prefill,
which also generates the first token, and a loop over further tokens, which reuses the memory of the
previous call's cache. Contestants take turns in one process, and the best round counts (rounds.py).
Continuations do not end at a stop token.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fire_lm.bench.arguments import check_json, check_names, write_json
from fire_lm.bench.encodings import ENCODINGS
from fire_lm.bench.machine import clock, load, machine, say
from fire_lm.bench.model import Workload, decoder, workload_for
from fire_lm.bench.one_attention import temp_bytes
from fire_lm.bench.rounds import Times, cost, race
from fire_lm.bench.shared_states import States
from fire_lm.bench.tables import columns, machine_text
from fire_lm.errors import UserError
from fire_lm.generation import Greedy
from fire_lm.generation.generate import check_context
from fire_lm.generation.programs import Inputs, cache_bytes, call_for, go_on, start
from fire_lm.results.bench_times import Cost, Machine


class Asked(NamedTuple):
    """The requested number of prompts in a batch, and of new tokens for each prompt."""

    batch: int
    new_tokens: int


@dataclasses.dataclass(frozen=True)
class Row:
    """The costs of one encoding with prompts of `length` tokens.

    Attributes:
      prefill: The cost of processing all prompts and generating the first token for each.
      token: The cost of generating one more token for each prompt.
      cache_bytes: The size in bytes of the cached keys and values of all prompts and new tokens.
    """

    encoding: str
    length: int
    prefill: Cost
    token: Cost
    cache_bytes: int


@dataclasses.dataclass(frozen=True)
class PeerRow:
    """A comparison of our generation with the peer's, for one encoding and prompt length.

    Attributes:
      prefill, token: Our seconds divided by the peer's, for the prefill and for one more token.
      same_tokens: The number of the peer's greedy tokens that are identical to ours.
      tokens: The number of tokens that were compared.
    """

    encoding: str
    length: int
    prefill: float
    token: float
    same_tokens: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class GenerationTimes:
    """The results of `fire-lm bench generate`.

    Attributes:
      model: A description of the model's size, vocabulary and dtype.
      left_out: The encodings and lengths that could not be measured, each with the reason.
      peer: The names and versions of the peer libraries, or "" if there were none.
      peers: The comparisons with the peer, which always runs on the CPU.
    """

    machine: Machine
    model: str
    batch: int
    new_tokens: int
    rows: list[Row]
    left_out: list[str]
    peer: str = ""
    peers: list[PeerRow] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Contestant:
    """An encoding to measure; each of its calls returns only when the work is done.

    Attributes:
      temp_bytes: The temporary memory of the prefill and of the loop over tokens, in bytes.
      generated: Returns the ids of all new tokens, `[B, T]`.
      peer: The peer's two calls, or None: the first generates one token, the second all tokens.
    """

    encoding: str
    length: int
    prefill: Callable[[], object]
    tokens: Callable[[], object]
    temp_bytes: tuple[int | None, int | None]
    cache_bytes: int
    generated: Callable[[], np.ndarray]
    peer: tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]] | None = None

    def calls(self) -> dict[str, Callable[[], object]]:
        key = f"{self.encoding} {self.length}"
        found: dict[str, Callable[[], object]] = {
            f"{key} prefill": self.prefill,
            f"{key} tokens": self.tokens,
        }
        if self.peer is not None:
            found |= {f"{key} peer prefill": self.peer[0], f"{key} peer all": self.peer[1]}
        return found


def bench(arguments: argparse.Namespace, peer: ModuleType | None = None) -> GenerationTimes:
    """Run the measurements, print and return the report, and write it as JSON if requested."""
    check_names(arguments.encodings, list(ENCODINGS), "--encodings")
    check_json(arguments.json)
    if not arguments.lengths:
        raise UserError("--lengths: give at least one, such as 2048")
    if arguments.new_tokens < 2:
        raise UserError("--new_tokens must be 2 or more: the prefill generates the first token")
    load_before = load()
    workload = workload_for(arguments.size, None)
    size = workload.size
    asked = Asked(arguments.batch_size, arguments.new_tokens)
    left_out: list[str] = []
    contestants = list(
        build(arguments.encodings, arguments.lengths, workload, asked, left_out, peer)
    )
    calls = {name: call for each in contestants for name, call in each.calls().items()}
    times = race(calls, arguments.rounds, say)
    report = GenerationTimes(
        machine=machine(load_before, {}),
        model=(
            f"{arguments.size}: {size.num_layers} layers, {size.hidden_size} wide, "
            f"{size.num_heads} heads, vocabulary of {workload.vocab_size:,}; {workload.dtype}"
        ),
        batch=asked.batch,
        new_tokens=asked.new_tokens,
        rows=[row_of(each, times, asked.new_tokens) for each in contestants],
        left_out=left_out,
        peer=peer.NAME if peer else "",
        peers=[beside(each, times, asked.new_tokens) for each in contestants if each.peer],
    )
    print(text(report))
    write_json(arguments.json, report)
    return report


def build(
    encodings: list[str],
    lengths: list[int],
    workload: Workload,
    asked: Asked,
    left_out: list[str],
    peer: ModuleType | None,
) -> Iterator[Contestant]:
    """Yield the contestants of each length, starting with NoPE.

    Encodings that cannot handle a length are recorded in `left_out` instead.
    """
    states = States(optax.identity(), workload.mesh)  # only parameters, no optimizer moments
    for length in dict.fromkeys(lengths):
        for name in dict.fromkeys(["nope", *encodings]):
            model = decoder(name, workload)
            context = length + asked.new_tokens
            try:
                check_context(model, context, context)
            except UserError as error:
                left_out.append(f"{name} at {length}: {str(error).partition(chr(10))[0]}")
                continue
            say(f"compiling {name} {length}")
            states.add(name, model)
            yield contestant(name, states.of(name).params, length, workload, asked, peer)


def contestant(
    name: str,
    params: Any,
    length: int,
    workload: Workload,
    asked: Asked,
    peer: ModuleType | None,
) -> Contestant:
    model, (batch, new_tokens) = decoder(name, workload), asked
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

    twin = None
    if peer is not None:
        theirs = peer.Peer(model, params, np.asarray(inputs.prompts_BP), new_tokens)
        twin = theirs.call(1), theirs.call(new_tokens)
    return Contestant(
        *(name, length),
        prefill=lambda: jax.block_until_ready(prefill(params, inputs)),
        tokens=tokens,
        temp_bytes=(temp_bytes(prefill), temp_bytes(loop)),
        cache_bytes=cache_bytes(call, params, inputs),
        generated=lambda: np.asarray(state.tokens_BKT[:, 0]),
        peer=twin,
    )


def row_of(entry: Contestant, times: dict[str, Times], new_tokens: int) -> Row:
    def of(what: str, calls: int, temp: int | None) -> Cost:
        own, nope = (
            times[f"{name} {entry.length} {what}"].per(calls) for name in (entry.encoding, "nope")
        )
        return cost(own, nope, clock(), temp)

    return Row(
        *(entry.encoding, entry.length),
        prefill=of("prefill", 1, entry.temp_bytes[0]),
        token=of("tokens", new_tokens - 1, entry.temp_bytes[1]),
        cache_bytes=entry.cache_bytes,
    )


def beside(entry: Contestant, times: dict[str, Times], new_tokens: int) -> PeerRow:
    """Compare our times and tokens with the peer's.

    The ratio for a token compares the times of all tokens after the first. The peer's time for
    these tokens is the difference between its two calls.
    """
    assert entry.peer is not None
    prefill, tokens, first, all_of_them = (
        min(times[f"{entry.encoding} {entry.length} {what}"].of(clock()))
        for what in ("prefill", "tokens", "peer prefill", "peer all")
    )
    ours, theirs = entry.generated(), entry.peer[1]()
    return PeerRow(
        *(entry.encoding, entry.length),
        prefill=prefill / first,
        token=tokens / (all_of_them - first),
        same_tokens=int((ours == theirs).sum()),
        tokens=new_tokens * len(ours),
    )


def text(report: GenerationTimes) -> str:
    header = ["", "prompt", "prefill ms", "x NoPE", "token ms", "x NoPE", "max/min"]
    header += ["cache MiB", "temp MiB"]
    cells = [
        [row.encoding, str(row.length)]
        + [f"{1e3 * row.prefill.seconds:.4g}", f"{row.prefill.x_nope:.2f}"]
        + [f"{1e3 * row.token.seconds:.4g}", f"{row.token.x_nope:.2f}", f"{row.token.spread:.2f}"]
        + [f"{row.cache_bytes / 2**20:.1f}"]
        + ["-" if row.token.temp_bytes is None else f"{row.token.temp_bytes / 2**20:.1f}"]
        for row in report.rows
    ]
    notes = [
        f"Milliseconds of {report.machine.clock} time on one device, minimum over the interleaved "
        f"rounds ({len(report.rows[0].token.rounds_s)}); max/min: the spread of token ms; batch "
        f"size {report.batch}, {report.new_tokens} new tokens; temp: temporary memory of the loop "
        "over new tokens, in addition to the cache.",
        *(f"skipped: {reason}" for reason in report.left_out),
    ]
    parts = [machine_text(report.machine), report.model, columns(header, cells, 1)]
    if report.peers:
        peers = [
            [row.encoding, str(row.length), f"{row.prefill:.2f}", f"{row.token:.2f}"]
            + [f"{row.same_tokens} of {row.tokens}"]
            for row in report.peers
        ]
        header = [f"ours / {report.peer}", "prompt", "prefill", "token", "same tokens"]
        parts.append(columns(header, peers, 1))
    return "\n\n".join([*parts, "\n".join(notes)])
