"""Benchmark results as dataclasses, and their formatting as plain text."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from fire_lm.results.bench_times import (
    Cost,
    Machine,
    ModelRow,
    ModelTimes,
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A measured combination of library, encoding, length in tokens, and attention."""

    library: str
    encoding: str
    length: int
    implementation: str

    @property
    def key(self) -> str:
        return f"{self.library} {self.encoding} {self.implementation} {self.length}"


@dataclasses.dataclass(frozen=True)
class Row(Entry):
    forward: Cost
    train: Cost


@dataclasses.dataclass(frozen=True)
class PeerRow:
    """Our seconds divided by the peer's, for the forward pass and for the training step.

    `logit_difference` is the largest absolute difference between the logits; a small value shows
    that the two models agree.
    """

    peer: str
    encoding: str
    length: int
    implementation: str
    forward: float
    train: float
    logit_difference: float


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """The temporary memory in bytes of a FIRE attention call, and its ratio to the previous row's.

    The ratio is None if there is no previous row or if the memory is unknown.
    """

    implementation: str
    length: int
    forward_bytes: int | None
    gradient_bytes: int | None
    forward_growth: float | None
    gradient_growth: float | None


@dataclasses.dataclass(frozen=True)
class AccuracyRow:
    """The relative errors of a FIRE attention call compared with `dense`.

    Attributes:
      output_error: The error of the output.
      gradient_error: The largest error among the gradients with respect to the queries, the keys,
        the values and FIRE's parameters.
    """

    implementation: str
    length: int
    output_error: float
    gradient_error: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of `fire-lm bench attention`.

    Attributes:
      matmul_gflops: The speed in GFLOP/s at which each library multiplies two square float32
        matrices of size `matmul_size`.
    """

    description: str
    machine: Machine
    matmul_size: int
    matmul_gflops: dict[str, float]
    rows: list[Row]
    peers: list[PeerRow]
    memory: list[MemoryRow]
    accuracy: list[AccuracyRow]


def text(report: Report) -> str:
    """Format the report as text with aligned tables."""
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in report.matmul_gflops.items())
    matmul = " x ".join([str(report.matmul_size)] * 3)
    parts = [f"{machine_text(report.machine)}\nfloat32 matmul {matmul}, GFLOP/s: {speeds}"]
    if report.rows:
        parts += [report.description, _times(report)]
    if report.peers:
        parts.append(_peers(report.peers))
    if report.memory:
        parts.append(_memory(report.memory))
    if report.accuracy:
        parts.append(_accuracy(report.accuracy))
    return "\n\n".join(parts)


def model_text(report: ModelTimes) -> str:
    """Format one table per length, followed by a description of the numbers."""
    parts = [machine_text(report.machine), report.model]
    for length, rows in itertools.groupby(report.rows, key=lambda row: row.length):
        parts.append(_model_times(length, list(rows)))
    devices = "one device" if report.devices == 1 else f"{report.devices} devices"
    notes = [
        f"Milliseconds of {report.machine.clock} time on {devices}, {report.statistic}, "
        "interleaved; max/min: the spread of train ms; tokens/s: the training throughput."
    ]
    if any(row.mfu is not None for row in report.rows):
        notes.append(f"MFU: FLOPs per token = {report.flops_convention}.")
    notes += [f"skipped: {reason}" for reason in report.left_out]
    return "\n\n".join([*parts, "\n".join(notes)])


def _model_times(length: int, rows: Sequence[ModelRow]) -> str:
    header = ["", "forward ms", "x NoPE", "train ms", "x NoPE", "max/min", "tokens/s"]
    cells = [
        [row.encoding, f"{1e3 * row.forward.seconds:.4g}", f"{row.forward.x_nope:.2f}"]
        + [f"{1e3 * row.train.seconds:.4g}", f"{row.train.x_nope:.2f}", f"{row.train.spread:.2f}"]
        + [f"{row.tokens_per_second:,.0f}"]
        + ([] if row.mfu is None else [f"{row.mfu:.1%}"])
        for row in rows
    ]
    header += ["MFU"] if rows[0].mfu is not None else []
    one = rows[0]
    title = f"length {length}, batch size {one.batch}, attention {one.attention}"
    return f"{title}\n{columns(header, cells, 1)}"


def machine_text(machine: Machine) -> str:
    where = f"core {machine.cores[0]}" if len(machine.cores) == 1 else f"{len(machine.cores)} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{machine.date}, {machine.processor}, {where}, load {machine.load:.1f}\n"
        f"{versions}; backend {machine.backend}"
    )


def _times(report: Report) -> str:
    header = ["", "encoding", "length", "attention"]
    header += ["forward s", "wall", "x NoPE", "max/min", "MiB"]
    header += ["train s", "wall", "x NoPE", "max/min", "MiB"]
    rows = [
        [row.library, row.encoding, str(row.length), row.implementation]
        + [cell for cost in (row.forward, row.train) for cell in _cost(cost)]
        for row in report.rows
    ]
    note = (
        f"Seconds: {report.machine.clock} time, minimum over the interleaved rounds "
        f"({len(report.rows[0].train.rounds_s)}); max/min: the spread over the rounds; MiB: "
        "temporary memory of a call."
    )
    return f"{columns(header, rows, 4)}\n{note}"


def _cost(cost: Cost) -> Iterator[str]:
    yield f"{cost.seconds:.4g}"
    yield f"{cost.wall_s:.4g}"
    yield f"{cost.x_nope:.2f}"
    yield f"{cost.spread:.2f}"
    yield _mebibytes(cost.temp_bytes)


def _peers(peers: Sequence[PeerRow]) -> str:
    header = [f"ours / {peers[0].peer}", "length", "attention", "forward", "train", "logits differ"]
    rows = [
        [row.encoding, str(row.length), row.implementation]
        + [f"{row.forward:.2f}", f"{row.train:.2f}", f"{row.logit_difference:.0e}"]
        for row in peers
    ]
    return columns(header, rows, 3)


def _memory(memory: Sequence[MemoryRow]) -> str:
    header = ["one FIRE attention", "length", "forward MiB", "growth", "gradient MiB", "growth"]
    rows = [
        [row.implementation, str(row.length)]
        + [_mebibytes(row.forward_bytes), _growth(row.forward_growth)]
        + [_mebibytes(row.gradient_bytes), _growth(row.gradient_growth)]
        for row in memory
    ]
    return f"{columns(header, rows, 1)}\nTemporary memory, float32, batch 1."


def _accuracy(accuracy: Sequence[AccuracyRow]) -> str:
    header = ["one FIRE attention", "length", "output error", "gradient error"]
    rows = [
        [row.implementation, str(row.length)]
        + [f"{row.output_error:.0e}", f"{row.gradient_error:.0e}"]
        for row in accuracy
    ]
    return f"{columns(header, rows, 1)}\nErrors relative to dense attention, float32."


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f}"


def _growth(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}x"


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """Format a table with aligned columns; the first `words` contain text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index < words else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
