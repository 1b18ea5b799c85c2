"""Result files beside `length_sweep.csv`: a dataclass is a row, a CSV file has rows of one kind.

Every row begins with the run that it is of, so that rows of many runs can stand in one file, and a
report can be drawn again from the files alone.
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
class PositionLoss:
    """Mean loss of the tokens at some positions, each seen after all before it in its sequence.

    Attributes:
      variant, step, dataset, split, construction: as in a length sweep.
      length: tokens in a sequence.
      first, last: positions that the mean is over, from 0.
      tokens: scored there, over all sequences.
      nll, nll_stderr: nats per token, and the standard error over sequences.
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

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key of all bins of one sweep, which are computed together."""
        return dataclasses.astuple(self)[:_POSITIONS_KEY]


_POSITIONS_KEY = [field.name for field in dataclasses.fields(PositionLoss)].index("length") + 1


@dataclasses.dataclass(frozen=True)
class BiasValue:
    """The bias of a trained encoding for a query and a key, which count from 0."""

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
    """The score of a head for a query and keys before the softmax, on held-out text.

    Attributes:
      variant: the change at evaluation, such as position interpolation; empty for none.
      score: q·k / sqrt(H) plus bias; its mean, least and largest over neighbouring keys.
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
    """A scalar that an encoding learns (FIRE: c, L, gamma), of one layer at one step."""

    run: str
    encoding: str
    step: int
    name: str
    layer: int
    value: float


@dataclasses.dataclass(frozen=True)
class RotaryPeriod:
    """The number of positions in which a pair of a rotary encoding's dims makes a full turn.

    Attributes:
      pair: of rotated dims, from 0, the fastest.
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
class LengthAccuracy:
    """The accuracy of a run on exercises of one length of a synthetic task.

    Attributes:
      variant: the change at evaluation, as in a length sweep; empty for none.
      layout: where answers stand, `slots` or `autoregressive`, of a causal decoder.
      positions: where tokens stand at the test: `plain`, `even` or `random`.
      length: of the exercise, in the task's own symbols.
      sequences: exercises.
      accuracy, stderr: percent of the answers' symbols, and its standard error.
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

    @property
    def key(self) -> tuple[str | int, ...]:
        return dataclasses.astuple(self)[:_ACCURACY_KEY]


_ACCURACY_KEY = [f.name for f in dataclasses.fields(LengthAccuracy)].index("length") + 1


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """The value of a metric for a run on a task, over all examples.

    Attributes:
      variant: the change at evaluation, as in a length sweep; empty for none.
      split: the examples, in words where it is no split of a data set.
      input_length, target_length, context_length: the most tokens of an input, of its answer, and
        of both together.
      truncation: how a longer input is shortened: `head` keeps its beginning, `tail` its end,
        `middle` both; `none`.
      decoding: `greedy`, `beam-4`, `sample-...`, `rank` or `slots`.
      value, stderr: percent where the metric is an accuracy, F1, EM or ROUGE.
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

    @property
    def key(self) -> tuple[str | int, ...]:
        return dataclasses.astuple(self)[:_SCORE_KEY]


_SCORE_KEY = [f.name for f in dataclasses.fields(TaskScore)].index("metric") + 1


@dataclasses.dataclass(frozen=True)
class TrainedTask:
    """The synthetic task that a run was trained on.

    Attributes:
      name: of the run among those of the same task: its arm, which runs of other seeds share.
      max_length: of exercises in training.
    """

    run: str
    name: str
    task: str
    layout: str
    max_length: int


class Finished(Protocol):
    """A row that is computed once, by its key."""

    @property
    def key(self) -> tuple[str | int, ...]: ...
    @property
    def step(self) -> int: ...


Row = TypeVar("Row")
FinishedRow = TypeVar("FinishedRow", bound=Finished)


def read_table(path: epath.Path, kind: type[Row]) -> list[Row]:
    """Rows of a file, none if there is no file.

    Raises:
      RunFailed: it is damaged, or of another kind.
    """
    return _parsed(storage.read_bytes(path), kind, str(path))


def _parsed(content: bytes | None, kind: type[Row], name: str) -> list[Row]:
    try:
        return [] if content is None else parse_table(content.decode(), kind, name)
    except UnicodeDecodeError as error:
        raise RunFailed(f"{name} is damaged ({error}): move it away") from error


def parse_table(text: str, kind: type[Row], name: str) -> list[Row]:
    """Rows of a file's text; a last line that was cut short is left out."""
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
    """Add rows to a file, whoever else writes to it: theirs stay, and so does what has a key that
    exists already, unless asked to `replace` it. Sorted by step, in order of arrival within one.

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
