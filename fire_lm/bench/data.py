"""The cost of reading text on the fly and from token blocks, compared with a plain seqio pipeline.

Each reader yields endless shuffled batches of the same text. Each turn opens a new reader and lets
it fill its buffers before the clock starts, so that no reader works ahead while another is being
timed. CPU seconds are the sum over all threads.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from fire_lm.bench.arguments import check_json
from fire_lm.bench.race import Case, Results, Row, race
from fire_lm.bench.tables import Column, publish, table
from fire_lm.console import say
from fire_lm.data import Blocks, TextData, only_data_set, train_iterator
from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.errors import UserError
from fire_lm.hardware.host import usable_cores

PLAIN, ON_THE_FLY, BLOCKS = "plain seqio", "on the fly", "blocks"
BATCH_SIZE = 16
_WARM_UP_ROWS = 2  # as a multiple of the shuffle buffer's size


def bench(arguments: argparse.Namespace) -> Row:
    """Run `fire-lm bench data` and return its report."""
    if arguments.vocabulary.startswith(PREFIX):
        raise UserError(
            f"--vocabulary is {arguments.vocabulary}: it must be bytes or the path of a "
            "SentencePiece model, with which text can be read on the fly"
        )
    from fire_lm.data.blocks.writer import write_blocks

    check_json(arguments.json)
    data = only_data_set(arguments.data_dir, arguments.tfds_name)
    data = dataclasses.replace(data, vocabulary=arguments.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        manifest = write_blocks(data, folder, splits=["train"])
        write_s = time.perf_counter() - began
        parts = manifest.splits["train"]
        stored = sum(part.tokens for part in parts)
        say(f"blocks written: {stored:,} tokens in {write_s:.1f} s")
        batches = -(-arguments.tokens // (BATCH_SIZE * arguments.length))
        readers = build(data, Blocks(folder, data.vocabulary), arguments.length, batches)
        times = race([reader.case() for reader in readers], arguments.rounds)
    tokens = batches * BATCH_SIZE * arguments.length
    report: Row = {
        "date": datetime.date.today().isoformat(),
        "cores": len(usable_cores()),
        "vocabulary": os.path.basename(data.vocabulary),
        "length": arguments.length,
        "tokens": tokens,
        "rounds": arguments.rounds,
        "bytes_per_token": sum(part.bytes for part in parts) / stored,
        "write_s": write_s,
        "rows": rows_of(readers, times, tokens),
    }
    publish(arguments.json, report, f"\n{text(report)}")
    return report


@dataclasses.dataclass
class Reader:
    """A kind of reader, of which every turn opens a new one.

    Attributes:
      warm_up: The number of batches to read before the clock starts.
      batches: The number of batches to read in a turn.
      position: The size in bytes of the reader's saved position in the data, and the seconds that
        saving takes; None for a reader that cannot save its position.
    """

    name: str
    length: int
    open: Callable[[], Iterator[dict[str, Any]]]
    warm_up: int
    batches: int
    position: tuple[int, float] | None = None

    def case(self) -> Case:
        return Case(self.name, self.length, {"read": self.read}, around=self.turn)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        self._rows = self.open()
        for _ in range(self.warm_up):
            next(self._rows)
        yield
        if hasattr(self._rows, "get_state"):
            began = time.perf_counter()
            self.position = (len(self._rows.get_state()), time.perf_counter() - began)
        del self._rows
        gc.collect()  # This ends the reader's threads.

    def read(self) -> None:
        for _ in range(self.batches):
            next(self._rows)


def build(data: TextData, blocks: Blocks, length: int, batches: int) -> list[Reader]:
    from fire_lm.data.on_the_fly.seqio_baseline import plain_batches

    settings = {"length": length, "batch_size": BATCH_SIZE, "seed": 0}
    openers: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        PLAIN: lambda: plain_batches(data, **settings),
        ON_THE_FLY: lambda: train_iterator(data, **settings),
        BLOCKS: lambda: train_iterator(blocks, **settings),
    }
    warm_up = -(-_WARM_UP_ROWS * data.shuffle_buffer // BATCH_SIZE)
    return [Reader(name, length, opener, warm_up, batches) for name, opener in openers.items()]


def rows_of(readers: list[Reader], times: Results, tokens: int) -> list[Row]:
    """Return a row per reader: the medians over the rounds, and the size of the saved position.

    The best round would mislead, because much of its text may have been read before the clock
    started.
    """
    cpu_s, wall_s = (
        {each.name: median(times[each.case().key]["read"].of(clock)) for each in readers}
        for clock in ("CPU", "wall")
    )
    return [
        {
            "name": name,
            "tokens_per_cpu_s": tokens / cpu_s[name],
            "tokens_per_wall_s": tokens / wall_s[name],
            "x_on_the_fly": cpu_s[ON_THE_FLY] / cpu_s[name],
            "position_bytes": position and position[0],
            "save_s": position and position[1],
        }
        for name, position in ((each.name, each.position) for each in readers)
    ]


def text(report: Row) -> str:
    """Format the report as a line that describes the measurement, followed by the table."""
    head = (
        f"{report['date']}, {report['cores']} cores; vocabulary {report['vocabulary']}, "
        f"{report['bytes_per_token']:.2f} bytes per token; "
        f"batches of {BATCH_SIZE} x {report['length']}; "
        f"median of {report['rounds']} rounds of {report['tokens']:,} tokens"
    )
    return f"{head}\n\n{table(report['rows'], COLUMNS)}"


COLUMNS = [
    Column("", "name"),
    Column("Mtok/CPU s", "tokens_per_cpu_s", ".2f", 1e-6),
    Column("Mtok/wall s", "tokens_per_wall_s", ".2f", 1e-6),
    Column("x on the fly", "x_on_the_fly", ".2f"),
    Column("position bytes", "position_bytes", ","),
    Column("save s", "save_s", ".4f"),
]
