"""What a benchmark found, and how it reads as plain text. Computes nothing but units."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where and when.

    Attributes:
      clock: what the seconds are: "CPU" (computing, all threads together) or "wall".
      cores: those that the process was bound to.
      load: processes that wanted a core, mean of the minute before the start.
      versions: of each library.
      matmul_gflops: speed of each library's float32 product of square matrices of `matmul_size`.
    """

    date: str
    processor: str
    backend: str
    clock: str
    cores: list[int]
    load: float
    versions: dict[str, str]
    matmul_size: int
    matmul_gflops: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one call, forward or training.

    Attributes:
      seconds: by the machine's clock, the least of `rounds_s`.
      wall_s: least wall time of a round.
      spread: largest of `rounds_s` over the least.
      x_nope: `seconds` over those of the same library's NoPE.
      temp_bytes: what the compiler sets aside beside arguments and results, if it says.
    """

    seconds: float
    wall_s: float
    spread: float
    x_nope: float
    temp_bytes: int | None
    rounds_s: list[float]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Who is measured, at how many tokens; `implementation` is that of attention."""

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
    """Ours over the peer's seconds; their logits' largest difference shows that both are right."""

    peer: str
    encoding: str
    length: int
    implementation: str
    forward: float
    train: float
    logit_difference: float


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """Temporary bytes of one FIRE attention; growth against the row before, if there is one."""

    implementation: str
    length: int
    forward_bytes: int | None
    gradient_bytes: int | None
    forward_growth: float | None
    gradient_growth: float | None


@dataclasses.dataclass(frozen=True)
class AccuracyRow:
    """One FIRE attention against `dense`, relative: its output, and the worst of the gradients by
    queries, keys, values and FIRE's parameters."""

    implementation: str
    length: int
    output_error: float
    gradient_error: float


@dataclasses.dataclass(frozen=True)
class Report:
    description: str
    machine: Machine
    rows: list[Row]
    peers: list[PeerRow]
    memory: list[MemoryRow]
    accuracy: list[AccuracyRow]


def text(report: Report) -> str:
    """The whole report, tables in columns."""
    parts = [_machine(report.machine)]
    if report.rows:
        parts += [report.description, _times(report)]
    if report.peers:
        parts.append(_peers(report.peers))
    if report.memory:
        parts.append(_memory(report.memory))
    if report.accuracy:
        parts.append(_accuracy(report.accuracy))
    return "\n\n".join(parts)


def _machine(machine: Machine) -> str:
    where = f"core {machine.cores[0]}" if len(machine.cores) == 1 else f"{len(machine.cores)} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in machine.matmul_gflops.items())
    size = machine.matmul_size
    return "\n".join(
        [
            f"{machine.date}, {machine.processor}, {where}, load {machine.load:.1f}",
            f"{versions}; backend {machine.backend}",
            f"float32 matmul {size} x {size} x {size}, GFLOP/s: {speeds}",
        ]
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
        f"Seconds: {report.machine.clock} time, least of {len(report.rows[0].train.rounds_s)} "
        "interleaved rounds; max/min: their spread; MiB: temporary memory of the compiled call."
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
    return f"{columns(header, rows, 1)}\nAgainst dense, relative, float32."


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f}"


def _growth(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}x"


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """The first `words` columns are words and start at the left, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index < words else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
