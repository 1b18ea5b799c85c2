"""Result files besides `length_sweep.csv`: each dataclass is the row of one kind of CSV file.

Every row begins with the name of its run, so that one file can hold rows of many runs, and a report
can be drawn again from the files alone.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, get_type_hints

from etils import epath

from fire_lm import storage
from fire_lm.errors import RunFailed


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A row that is computed once. Its fields up to the one named `last_of_key` are its key."""

    last_of_key = "length"

    @property
    def key(self) -> tuple[str | int, ...]:
        """The values that identify the row."""
        last = _columns(type(self)).index(self.last_of_key)
        return dataclasses.astuple(self)[: last + 1]


@dataclasses.dataclass(frozen=True)
class PositionLoss(Keyed):
    """The mean loss of the tokens in a range of positions, each predicted from all earlier ones.

    The fields up to `construction` mean the same as in `SweepRow`. The bins of one sweep, which are
    computed together, share one key.

    Attributes:
      length: The number of tokens in a sequence.
      first: The first position of the range, counted from 0.
      last: The last position of the range.
      tokens: The number of tokens scored in the range, over all sequences.
      nll: Nats per token.
      nll_stderr: The standard error of `nll` over sequences.
    """

    run: str
    encoding: str
    variant: str
    step: int
    dataset: str
    split: str
    construction: str
    length: int
    first: int
    last: int
    tokens: int
    nll: float
    nll_stderr: float


@dataclasses.dataclass(frozen=True)
class BiasValue:
    """The bias of a trained encoding for a query and a key, whose positions count from 0."""

    run: str
    encoding: str
    step: int
    layer: int
    head: int
    query: int
    key: int
    bias: float


@dataclasses.dataclass(frozen=True)
class AttentionScore:
    """The score of a head for a query and neighbouring keys before the softmax, on held-out text.

    Attributes:
      variant: The change at evaluation, such as position interpolation; empty for none.
      score: The mean over the keys of q·k / sqrt(H) plus bias.
      least: The minimum over the keys.
      largest: The maximum over the keys.
    """

    run: str
    encoding: str
    variant: str
    step: int
    layer: int
    head: int
    query: int
    first_key: int
    last_key: int
    score: float
    least: float
    largest: float


@dataclasses.dataclass(frozen=True)
class LearnedNumber:
    """A scalar that an encoding learns (FIRE: c, L, gamma), for one layer at one step."""

    run: str
    encoding: str
    step: int
    name: str
    layer: int
    value: float


@dataclasses.dataclass(frozen=True)
class RotaryPeriod:
    """The number of positions in which a pair of rotated dimensions makes a full turn.

    Attributes:
      pair: The number of the pair, from 0, which is the fastest.
    """

    run: str
    encoding: str
    pair: int
    period: float


@dataclasses.dataclass(frozen=True)
class TrainingPoint:
    """A line of `metrics.jsonl`."""

    run: str
    encoding: str
    step: int
    tokens: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_second: float


@dataclasses.dataclass(frozen=True)
class LengthAccuracy(Keyed):
    """The accuracy of a run on exercises of one length of a synthetic task.

    Attributes:
      variant: The change at evaluation, as in a length sweep; empty for none.
      layout: Where a causal decoder gives its answers: `slots` or `autoregressive`.
      positions: The positions of the tokens in the test: `plain`, `even` or `random`.
      length: The length of the exercises, in the task's own symbols.
      sequences: The number of exercises.
      accuracy: The percentage of correct symbols in the answers.
      stderr: The standard error of `accuracy`.
    """

    run: str
    encoding: str
    variant: str
    step: int
    task: str
    layout: str
    positions: str
    length: int
    sequences: int
    accuracy: float
    stderr: float


@dataclasses.dataclass(frozen=True)
class TaskScore(Keyed):
    """The value of a metric for a run on a task, over all examples.

    Attributes:
      variant: The change at evaluation, as in a length sweep; empty for none.
      split: The split of the data set, or another description of the examples.
      input_length: The maximum number of tokens of an input.
      target_length: The maximum number of tokens of an answer.
      truncation: How longer inputs are truncated: `none`, `head`, `tail` or `middle`.
      decoding: How answers are produced: `greedy`, `beam-4`, `sample-...`, `rank` or `slots`.
      context_length: The maximum number of tokens of an input with its answer.
      metric: The name of the metric.
      examples: The number of examples.
      value: The value, in percent if the metric is an accuracy, F1, EM or ROUGE.
      stderr: The standard error of `value`.
    """

    run: str
    encoding: str
    variant: str
    step: int
    suite: str
    task: str
    split: str
    input_length: int
    target_length: int
    truncation: str
    decoding: str
    context_length: int
    metric: str
    examples: int
    value: float
    stderr: float
    last_of_key = "metric"


@dataclasses.dataclass(frozen=True)
class TrainedTask:
    """The synthetic task that a run was trained on.

    Attributes:
      name: The name of the run among those of the same task: its arm, which runs with other seeds
        share.
      max_length: The maximum length of the exercises in training.
    """

    run: str
    name: str
    task: str
    layout: str
    max_length: int


class Finished(Protocol):
    """A row that is computed only once for its key."""

    @property
    def key(self) -> tuple[str | int, ...]: ...
    @property
    def step(self) -> int: ...


Row = TypeVar("Row")
FinishedRow = TypeVar("FinishedRow", bound=Finished)


def read_table(path: epath.Path, kind: type[Row]) -> list[Row]:
    """Return the rows of a file, or none if the file does not exist.

    Raises:
      RunFailed: The file is damaged or has rows of another kind.
    """
    return _parsed(storage.read_bytes(path), kind, str(path))


def _parsed(content: bytes | None, kind: type[Row], name: str) -> list[Row]:
    try:
        return [] if content is None else parse_table(content.decode(), kind, name)
    except UnicodeDecodeError as error:
        raise RunFailed(f"{name} is damaged ({error}): move it away") from error


def parse_table(text: str, kind: type[Row], name: str) -> list[Row]:
    """Return the rows in a file's text; an incomplete last line is skipped."""
    columns, types = _columns(kind), tuple(get_type_hints(kind).values())
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if lines and tuple(lines[0]) != columns:
        raise RunFailed(f"{name} does not have the columns {', '.join(columns)}: move it away")
    try:
        return [
            kind(*(convert(value) for convert, value in zip(types, line, strict=True)))
            for line in lines[1:]
        ]
    except ValueError as error:
        raise RunFailed(f"{name} is damaged ({error}): move it away") from error


def write_table(path: epath.Path, kind: type[Any], rows: Iterable[Any]) -> None:
    """Replace the file atomically, so that a reader never sees half of it."""
    storage.replace_text(path, _in_csv(kind, rows))


def _in_csv(kind: type[Any], rows: Iterable[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(kind))
    writer.writerows(dataclasses.astuple(row) for row in rows)
    return text.getvalue()


def merge_table(
    path: epath.Path,
    kind: type[FinishedRow],
    rows: Iterable[FinishedRow],
    replace: bool = False,
) -> list[FinishedRow]:
    """Add rows to a file, to which other processes may write at the same time.

    Existing rows stay, also if a new row has the same key, unless `replace` is set. The file is
    sorted by step, and within a step by order of arrival.

    Returns:
      All rows of the file.
    """
    rows = list(rows)
    merged: list[FinishedRow] = []

    def with_ours(content: bytes | None) -> str | None:
        nonlocal merged
        merged = _parsed(content, kind, str(path))
        known = {row.key: row for row in merged}
        new = [r for r in rows if r.key not in known or (replace and known[r.key] != r)]
        if not new:
            return None
        written = {row.key for row in new}
        kept = [row for row in merged if row.key not in written]
        merged = sorted([*kept, *new], key=lambda row: row.step)
        return _in_csv(kind, merged)

    storage.change_text(path, with_ours)
    return merged


def _columns(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))
