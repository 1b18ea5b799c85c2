"""What an encoding costs in generation, beside NoPE: reading a prompt, and each new token after it.

The programs are those of `fire-lm generate` on the terminal: prefill with the first token, and a
loop over the others, which takes over the cache of the call before. Contestants take turns in one
process and the best round counts (rounds.py). Nothing ends a continuation.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fire_lm.bench.asked import check_json, check_names, write_json
from fire_lm.bench.encodings import ENCODINGS
from fire_lm.bench.machine import clock, load, machine, say
from fire_lm.bench.model import Setting, decoder, setting_for
from fire_lm.bench.one_attention import temp_bytes
from fire_lm.bench.rounds import Times, cost, race
from fire_lm.bench.states import States
from fire_lm.bench.tables import columns, machine_text
from fire_lm.errors import UserError
from fire_lm.generation import Greedy
from fire_lm.generation.generate import check_context
from fire_lm.generation.programs import Inputs, cache_bytes, call_for, go_on, start
from fire_lm.results.bench_times import Cost, Machine


class Asked(NamedTuple):
    """Prompts that are read and continued together, and tokens of each after the first."""

    batch: int
    new_tokens: int


@dataclasses.dataclass(frozen=True)
class Row:
    """Of one encoding after a prompt of `length` tokens.

    Attributes:
      prefill: reading all prompts, and the first token of each.
      token: one further token of each.
      cache_bytes: keys and values of prompts and new tokens.
    """

    encoding: str
    length: int
    prefill: Cost
    token: Cost
    cache_bytes: int


@dataclasses.dataclass(frozen=True)
class GenerationTimes:
    """What `fire-lm bench generate` found.

    Attributes:
      model: size, dtype and what is measured, in words.
      left_out: encodings and lengths that could not be measured, each with the reason.
    """

    machine: Machine
    model: str
    batch: int
    new_tokens: int
    rows: list[Row]
    left_out: list[str]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """Its calls return when the work is done; `temp_bytes` of both."""

    encoding: str
    length: int
    prefill: Callable[[], object]
    tokens: Callable[[], object]
    temp_bytes: tuple[int | None, int | None]
    cache_bytes: int


def bench(arguments: argparse.Namespace) -> GenerationTimes:
    """Measures what the command line asks for, prints it, and writes the JSON."""
    check_names(arguments.encodings, list(ENCODINGS), "--encodings")
    check_json(arguments.json)
    if not arguments.lengths:
        raise UserError("--lengths: name at least one, such as 2048")
    if arguments.new_tokens < 2:
        raise UserError("--new_tokens: the first comes with the prompt, name 2 or more")
    load_before = load()
    setting = setting_for(arguments.size, None)
    asked = Asked(arguments.batch_size, arguments.new_tokens)
    left_out: list[str] = []
    contestants = list(build(arguments.encodings, arguments.lengths, setting, asked, left_out))
    times = race(
        {
            f"{each.encoding} {each.length} {what}": call
            for each in contestants
            for what, call in (("prefill", each.prefill), ("tokens", each.tokens))
        },
        arguments.rounds,
        say,
    )
    report = GenerationTimes(
        machine=machine(load_before, {}),
        model=(
            f"{arguments.size}: {setting.size.num_layers} layers, {setting.size.hidden_size} wide, "
            f"{setting.size.num_heads} heads, vocabulary of {setting.vocab_size:,}; {setting.dtype}"
        ),
        batch=asked.batch,
        new_tokens=asked.new_tokens,
        rows=[row_of(each, times, asked.new_tokens) for each in contestants],
        left_out=left_out,
    )
    print(text(report))
    write_json(arguments.json, report)
    return report


def build(
    encodings: list[str], lengths: list[int], setting: Setting, asked: Asked, left_out: list[str]
) -> Iterator[Contestant]:
    """Length by length, NoPE first; what a length is too long for goes to `left_out`."""
    states = States(optax.identity(), setting.mesh)  # without moments: parameters alone
    for length in dict.fromkeys(lengths):
        for name in dict.fromkeys(["nope", *encodings]):
            model = decoder(name, setting)
            context = length + asked.new_tokens
            try:
                check_context(model, context, context)
            except UserError as error:
                left_out.append(f"{name} at {length}: {str(error).partition(chr(10))[0]}")
                continue
            say(f"compiling {name} {length}")
            states.add(name, model)
            yield contestant(name, states.of(name).params, length, setting, asked)


def contestant(name: str, params: Any, length: int, setting: Setting, asked: Asked) -> Contestant:
    model, (batch, new_tokens) = decoder(name, setting), asked
    context = length + new_tokens
    call = call_for(model, Greedy(), new_tokens, (), context, None)
    rng = np.random.default_rng(length)
    inputs = Inputs(
        jnp.asarray(rng.integers(1, setting.vocab_size, (batch, length), np.int32)),
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
        again = state._replace(step=jnp.int32(0))  # what was written is not seen, and overwritten
        state = jax.block_until_ready(loop(params, inputs, again, new_tokens))

    return Contestant(
        *(name, length),
        prefill=lambda: jax.block_until_ready(prefill(params, inputs)),
        tokens=tokens,
        temp_bytes=(temp_bytes(prefill), temp_bytes(loop)),
        cache_bytes=cache_bytes(call, params, inputs),
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
        f"Milliseconds of {report.machine.clock} time on one device, least of "
        f"{len(report.rows[0].token.rounds_s)} interleaved rounds; max/min: their spread of a "
        f"token; {report.batch} at a time, {report.new_tokens} new tokens; temp: of the loop over "
        "new tokens, beside the cache.",
        *(f"left out: {reason}" for reason in report.left_out),
    ]
    parts = [machine_text(report.machine), report.model, columns(header, cells, 1)]
    return "\n\n".join([*parts, "\n".join(notes)])
