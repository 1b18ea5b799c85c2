"""The cost of reading text on the fly and from token blocks, compared with a plain seqio pipeline.

The three readers take turns in the same process, and each yields endless shuffled batches of the
same text. Each turn opens a new reader and lets it fill its buffers before the clock starts, so
that no reader works ahead while another is being timed. CPU seconds are the sum over all threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from fire_lm.bench import usable_cores
from fire_lm.bench.arguments import check_json, write_json
from fire_lm.bench.rounds import Times, timed
from fire_lm.bench.tables import columns
from fire_lm.data import Blocks, TextData, only_data_set, train_iterator, write_blocks

PLAIN, ON_THE_FLY, BLOCKS = "plain seqio", "on the fly", "blocks"
BATCH_SIZE = 16
_WARM_UP_ROWS = 2  # as a multiple of the shuffle buffer's size


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements of one reader.

    Attributes:
      tokens_per_cpu_s, tokens_per_wall_s: The medians over the rounds (the best round would
        mislead, because much of its text may have been read before the clock started).
      x_on_the_fly: `tokens_per_cpu_s` divided by its value for the on-the-fly reader.
      position_bytes, save_s: The size of the reader's saved position in the data, and the time
        that saving takes; None for a reader that cannot save its position.
    """

    name: str
    tokens_per_cpu_s: float
    tokens_per_wall_s: float
    x_on_the_fly: float
    position_bytes: int | None
    save_s: float | None


@dataclasses.dataclass(frozen=True)
class Report:
    date: str
    cores: int
    vocabulary: str
    length: int
    tokens: int
    rounds: int
    bytes_per_token: float
    write_s: float
    rows: list[Row]


def bench(arguments: argparse.Namespace) -> Report:
    """Run `fire-lm bench data` and return its report."""
    check_json(arguments.json)
    data = only_data_set(arguments.data_dir, arguments.tfds_name)
    data = dataclasses.replace(data, vocabulary=arguments.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        manifest = write_blocks(data, folder, splits=["train"])
        write_s = time.perf_counter() - began
        parts = manifest.splits["train"]
        stored = sum(part.tokens for part in parts)
        bytes_per_token = sum(part.bytes for part in parts) / stored
        _say(f"blocks written: {stored:,} tokens in {write_s:.1f} s")
        openers = contestants(data, Blocks(folder, data.vocabulary), arguments.length)
        batches = -(-arguments.tokens // (BATCH_SIZE * arguments.length))
        times, positions = race(openers, batches, data, arguments.rounds)
    tokens = batches * BATCH_SIZE * arguments.length
    report = Report(
        date=datetime.date.today().isoformat(),
        cores=len(usable_cores()),
        vocabulary=os.path.basename(data.vocabulary),
        length=arguments.length,
        tokens=tokens,
        rounds=arguments.rounds,
        bytes_per_token=bytes_per_token,
        write_s=write_s,
        rows=rows_of(times, positions, tokens),
    )
    print(f"\n{text(report)}")
    write_json(arguments.json, report)
    return report


def contestants(
    data: TextData, blocks: Blocks, length: int
) -> dict[str, Callable[[], Iterator[dict[str, Any]]]]:
    """Return, for each kind of reader, a function that opens a new reader."""
    from fire_lm.data.on_the_fly.seqio_baseline import plain_batches

    settings = {"length": length, "batch_size": BATCH_SIZE, "seed": 0}
    return {
        PLAIN: lambda: plain_batches(data, **settings),
        ON_THE_FLY: lambda: train_iterator(data, **settings),
        BLOCKS: lambda: train_iterator(blocks, **settings),
    }


def race(
    openers: dict[str, Callable[[], Iterator[dict[str, Any]]]],
    batches: int,
    data: TextData,
    rounds: int,
) -> tuple[dict[str, Times], dict[str, tuple[int, float]]]:
    """Time `batches` batches of each reader in every round; return the times by reader.

    The second result lists, for each reader that can save its position in the data, the size of the
    saved position in bytes and the seconds that saving takes.
    """
    found = {name: Times() for name in openers}
    positions = {}
    for index in range(rounds):
        for name in reversed(openers) if index % 2 else openers:
            opened = openers[name]()

            def take(count: int, opened: Iterator[Any] = opened) -> None:
                for _ in range(count):
                    next(opened)

            take(-(-_WARM_UP_ROWS * data.shuffle_buffer // BATCH_SIZE))
            cpu_s, wall_s = timed(functools.partial(take, batches), 1)
            found[name].cpu_s.append(cpu_s)
            found[name].wall_s.append(wall_s)
            _say(f"round {index + 1} of {rounds}: {name} {cpu_s:.2f} s CPU, {wall_s:.2f} s wall")
            if hasattr(opened, "get_state"):
                began = time.perf_counter()
                positions[name] = (len(opened.get_state()), time.perf_counter() - began)
            del opened, take
            gc.collect()  # This ends the reader's threads.
    return found, positions


def rows_of(
    times: dict[str, Times], positions: dict[str, tuple[int, float]], tokens: int
) -> list[Row]:
    base = median(times[ON_THE_FLY].cpu_s)
    return [
        Row(
            name,
            tokens_per_cpu_s=tokens / median(taken.cpu_s),
            tokens_per_wall_s=tokens / median(taken.wall_s),
            x_on_the_fly=base / median(taken.cpu_s),
            position_bytes=positions[name][0] if name in positions else None,
            save_s=positions[name][1] if name in positions else None,
        )
        for name, taken in times.items()
    ]


def text(report: Report) -> str:
    """Format the report as a line that describes the measurement, followed by the table."""
    head = (
        f"{report.date}, {report.cores} cores; vocabulary {report.vocabulary}, "
        f"{report.bytes_per_token:.2f} bytes per token; batches of {BATCH_SIZE} x {report.length}; "
        f"median of {report.rounds} rounds of {report.tokens:,} tokens"
    )
    header = ["", "Mtok/CPU s", "Mtok/wall s", "x on the fly", "position bytes", "save s"]
    rows = [
        [
            row.name,
            f"{row.tokens_per_cpu_s / 1e6:.2f}",
            f"{row.tokens_per_wall_s / 1e6:.2f}",
            f"{row.x_on_the_fly:.2f}",
            "-" if row.position_bytes is None else f"{row.position_bytes:,}",
            "-" if row.save_s is None else f"{row.save_s:.4f}",
        ]
        for row in report.rows
    ]
    return f"{head}\n\n{columns(header, rows, 1)}"


def _say(message: str) -> None:
    print(message, flush=True)
