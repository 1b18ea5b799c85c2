"""The time of one attention call with a window, as a fraction of its time without one.

The call has the size of the 125M model, in float32 with batch size 1. Calls with and without the
window take turns; see `bench.rounds`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fire_lm.attention import Implementation, Mask
from fire_lm.bench import one_attention
from fire_lm.bench.arguments import check_json, write_json
from fire_lm.bench.encodings import TRAIN_LENGTH
from fire_lm.bench.machine import clock, say
from fire_lm.bench.rounds import race
from fire_lm.bench.tables import columns
from fire_lm.models import ModelSize, size_125m
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.fire import FIRE
from fire_lm.positions.nope import NoPE

ENCODINGS: dict[str, Any] = {"nope": NoPE, "fire": FIRE}


@dataclasses.dataclass(frozen=True)
class Row:
    """The seconds of a call in its best round, without a window and with it.

    `what` is "forward" or "forward and backward".
    """

    encoding: str
    implementation: str
    length: int
    window: int
    what: str
    full_s: float
    window_s: float


def bench(arguments: argparse.Namespace) -> list[Row]:
    """Run the measurements, print and return the rows, and write them as JSON if requested."""
    check_json(arguments.json)
    rows = [
        row
        for name in ENCODINGS
        for implementation in dict.fromkeys(arguments.implementations)
        for length in dict.fromkeys(arguments.lengths)
        for row in compare(
            name, implementation, length, arguments.window, arguments.rounds, size_125m()
        )
    ]
    print(table(rows))
    write_json(arguments.json, Report(rows))
    return rows


@dataclasses.dataclass(frozen=True)
class Report:
    """The rows of all calls."""

    rows: list[Row]


def compare(
    name: str,
    implementation: Implementation,
    length: int,
    window: int,
    rounds: int,
    size: ModelSize,
) -> Iterator[Row]:
    """Time one encoding's attention with and without a window."""
    encoding: PositionalEncoding = ENCODINGS[name](
        size.num_heads, size.head_dim, TRAIN_LENGTH, size.hidden_size
    )
    inputs = one_attention.inputs_of(encoding, length, size)
    calls: dict[str, Callable[[], object]] = {}
    whats = ("forward", "forward and backward")
    for kind, mask in (("full", Mask()), ("window", Mask(window=window))):
        for what, call in zip(
            whats, one_attention.calls(encoding, length, implementation, mask), strict=True
        ):
            say(f"compiling {name} {implementation} {length} {kind} {what}")
            compiled = jax.jit(call).lower(*inputs).compile()
            calls[f"{kind} {what}"] = functools.partial(_wait, compiled, inputs)
    times = race(calls, rounds, say)
    for what in whats:
        full, windowed = (min(times[f"{kind} {what}"].of(clock())) for kind in ("full", "window"))
        yield Row(name, implementation, length, window, what, full, windowed)


def table(rows: list[Row]) -> str:
    header = ["one attention", "", "", "length", "window", "full, s", "window, s", "window / full"]
    cells = [
        [row.encoding, row.implementation, row.what, str(row.length), str(row.window)]
        + [f"{row.full_s:.3f}", f"{row.window_s:.3f}", f"{row.window_s / row.full_s:.3f}"]
        for row in rows
    ]
    return columns(header, cells, 3)


def _wait(call: Callable[..., Any], inputs: tuple[Any, ...]) -> object:
    return jax.block_until_ready(call(*inputs))
