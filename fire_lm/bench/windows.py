"""The time of one attention call with a window, as a fraction of its time without one.

The encodings are NoPE and FIRE. The call has the size of the 125M model, in float32 with batch size
1 (race.py).
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import jax

from fire_lm.attention import Implementation, Mask
from fire_lm.bench import one_attention
from fire_lm.bench.arguments import check, check_implementations, completed
from fire_lm.bench.encodings import TRAIN_LENGTH
from fire_lm.bench.machine import clock
from fire_lm.bench.race import Case, Row, race
from fire_lm.bench.tables import Column, publish, table
from fire_lm.console import say
from fire_lm.models import ModelSize, size_125m
from fire_lm.positions.fire import FIRE
from fire_lm.positions.nope import NoPE

ENCODINGS: dict[str, Any] = {"nope": NoPE, "fire": FIRE}
CALLS = ("forward", "forward and backward")


def bench(arguments: argparse.Namespace, size: ModelSize | None = None) -> list[Row]:
    """Run the measurements, print and return the rows, and write them as JSON if requested."""
    arguments = completed(arguments, ("lengths", "implementations", "rounds"), "--window")
    check(arguments, implementations=get_args(Implementation))
    check_implementations(arguments.implementations, jax.default_backend())
    window = arguments.window
    cases = list(build(arguments.implementations, arguments.lengths, window, size or size_125m()))
    times = race(cases, arguments.rounds)
    rows = []
    for case in cases:
        for what in CALLS:
            full, short = (
                min(times[case.key][f"{mask} {what}"].of(clock())) for mask in ("full", "window")
            )
            row = {"encoding": case.name, **case.kind, "length": case.length, "window": window}
            rows.append(row | {"what": what, "full_s": full, "window_s": short})
    shown = [row | {"ratio": row["window_s"] / row["full_s"]} for row in rows]
    publish(arguments.json, {"rows": rows}, table(shown, COLUMNS, 3))
    return rows


def build(
    implementations: Sequence[Implementation], lengths: Sequence[int], window: int, size: ModelSize
) -> Iterator[Case]:
    """Yield a case for each encoding, whose calls are those without and those with the window."""
    masks = {"full": Mask(), "window": Mask(window=window)}
    for name, kind in ENCODINGS.items():
        encoding = kind(size.num_heads, size.head_dim, TRAIN_LENGTH, size.hidden_size)
        for implementation in implementations:
            for length in lengths:
                inputs = one_attention.inputs_of(encoding, length, size)
                calls: dict[str, Callable[[], object]] = {}
                for mask_name, mask in masks.items():
                    pair = one_attention.calls(encoding, length, implementation, mask)
                    for what, call in zip(CALLS, pair, strict=True):
                        say(f"compiling {name} {implementation} {length} {mask_name} {what}")
                        compiled = jax.jit(call).lower(*inputs).compile()
                        calls[f"{mask_name} {what}"] = functools.partial(_wait, compiled, inputs)
                yield Case(name, length, calls, kind={"implementation": implementation})


def _wait(call: Callable[..., Any], inputs: tuple[Any, ...]) -> object:
    return jax.block_until_ready(call(*inputs))


COLUMNS = [
    *(Column("one attention", "encoding"), Column("", "implementation"), Column("", "what")),
    *(Column("length", "length"), Column("window", "window")),
    *(Column("full, s", "full_s", ".3f"), Column("window, s", "window_s", ".3f")),
    Column("window / full", "ratio", ".3f"),
]
