"""The row types of most result files, and functions for CSV tables.

Every row begins with the name of a run, so that one file can contain rows of many runs and a report
can be regenerated from the files without the runs.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import numbers
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar, get_type_hints

from etils import epath

from fire_lm import storage
from fire_lm.errors import RunFailed


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A row of a checkpoint that is computed only once.

    Its key consists of the fields up to `last_of_key`, beginning with these four.

    Attributes:
      run: The name of the run.
      encoding: The name of the run's positional encoding.
      variant: The name of a change that applies only at evaluation, such as yarn-4x, or empty.
      step: The step of the checkpoint.
    """

    run: str
    encoding: str
    variant: str
    step: int
    last_of_key: ClassVar[str] = "length"

    @property
    def key(self) -> tuple[str | int, ...]:
        """The values that identify the row."""
        last = _columns(type(self)).index(self.last_of_key)
        return dataclasses.astuple(self)[: last + 1]


@dataclasses.dataclass(frozen=True)
class PositionLoss(Keyed):
    """The mean loss in a range of positions, with each token predicted from all earlier tokens.

    The fields up to `construction` have the same meaning as in `SweepRow`. The ranges of one sweep
    are computed together and have the same key.

    Attributes:
      length: The number of tokens in a sequence.
      first: The first position of the range; positions are counted from 0.
      last: The last position of the range.
      tokens: The number of tokens that were scored in the range across all sequences.
      nll: The mean loss in nats per token.
      nll_stderr: The standard error of `nll`, with rows of text as the independent samples.
    """

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
    """The bias of a trained encoding for a query and a key, whose positions are counted from 0."""

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
    """The pre-softmax scores of a head for a query and a range of keys, on held-out text.

    Attributes:
      variant: The name of a change that applies only at evaluation, such as position interpolation,
        or empty.
      score: The mean, over the keys, of q·k / sqrt(H) plus bias.
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
    """The value of a learned scalar of an encoding, such as FIRE's c, in one layer at one step."""

    run: str
    encoding: str
    step: int
    name: str
    layer: int
    value: float


@dataclasses.dataclass(frozen=True)
class KindOfLayer:
    """A kind of layer of a run whose layers differ; see `models.layer_rows`."""

    run: str
    encoding: str
    layers: str
    layer_encoding: str
    options: str
    sees: str
    parameters_each: str


@dataclasses.dataclass(frozen=True)
class RotaryPeriod:
    """The number of positions over which a pair of rotated dimensions makes a full turn.

    Attributes:
      pair: The index of the pair; pair 0 rotates fastest.
    """

    run: str
    encoding: str
    pair: int
    period: float


@dataclasses.dataclass(frozen=True)
class TrainingPoint:
    """The main entries of a line of `metrics.jsonl`."""

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
      layout: Where a causal decoder writes its answers: `slots` or `autoregressive`.
      positions: The positions of the tokens in the test: `plain`, `even` or `random`, which is one
        fixed draw.
      length: The length of the exercises in symbols of the task.
      sequences: The number of exercises.
      accuracy: The percentage of correct symbols in the answers.
      stderr: The standard error of `accuracy` due to the choice of exercises, not of `random`
        positions.
    """

    task: str
    layout: str
    positions: str
    length: int
    sequences: int
    accuracy: float
    stderr: float


@dataclasses.dataclass(frozen=True)
class ValueByLength(Keyed):
    """The value of a measure at one length, which `fire-lm report` draws against the length.

    Attributes:
      stderr: The standard error of `value`.
    """

    length: int
    value: float
    stderr: float


@dataclasses.dataclass(frozen=True)
class TaskScore(Keyed):
    """The value of a metric for a run on the examples of a task.

    Attributes:
      split: The split of the data set, or another description of the examples.
      input_length: The maximum number of tokens of an input.
      target_length: The maximum number of tokens of an answer.
      truncation: The rule for longer inputs: `head` keeps the beginning, `tail` the end, and
        `middle` both; `none` means that inputs are not truncated.
      decoding: The method that produces answers: `greedy`, `beam-4`, `sample-...`, `rank` or
        `slots`.
      context_length: The maximum total number of tokens in an input and its answer.
      metric: The name of the metric.
      examples: The number of examples.
      value: The value of the metric, in percent if the metric is an accuracy, F1, EM or ROUGE.
      stderr: The standard error of `value`.
    """

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
      name: The name of the run's arm, as determined among all runs on synthetic tasks.
      max_length: The maximum length of the training exercises.
    """

    run: str
    name: str
    task: str
    layout: str
    max_length: int


@dataclasses.dataclass(frozen=True)
class ScoredModel:
    """The assignment of a run to a model in the task scores of a suite.

    Attributes:
      suite: The suite, or "" for tasks without a suite and for a finetuned run without scores.
      name: The name of the model. Runs share it if they differ only in their seeds and in the tasks
        on which they were finetuned.
    """

    run: str
    suite: str
    name: str


@dataclasses.dataclass(frozen=True)
class BudgetSeries:
    """The assignment of a run to a series of budgets.

    Attributes:
      name: The name of the run's arm without its number of steps. Runs of several arms share it if
        they differ only in their seeds, numbers of steps, and what the optimizer makes of these.
    """

    run: str
    name: str


@dataclasses.dataclass(frozen=True)
class BudgetRow:
    """The loss and the drift of a series at one budget and length.

    Attributes:
      seeds: The number of runs in the means.
      tokens: The number of tokens seen in training.
      per_parameter: `tokens` divided by the number of parameters.
      multiple: The length as a multiple of the training length.
      loss: The mean loss, in nats per token if all rows are comparable, else in bits per byte.
      drift: The loss minus that at the training length.
      drift_half_width: Half the width of its 95 % interval; NaN for a single run.
      over_kerple: The drift minus KERPLE's; NaN without KERPLE.
      over_kerple_half_width: Half the width of its 95 % interval; NaN for a single run.
    """

    text: str
    series: str
    encoding: str
    seeds: int
    tokens: int
    per_parameter: float
    multiple: float
    length: int
    loss: float
    drift: float
    drift_half_width: float
    over_kerple: float
    over_kerple_half_width: float


Row = TypeVar("Row")
FinishedRow = TypeVar("FinishedRow", bound=Keyed)


def read_table(path: epath.Path, kind: type[Row]) -> list[Row]:
    """Return the rows of a file, or an empty list if the file does not exist.

    Raises:
      RunFailed: The file is damaged or contains rows of another kind.
    """
    return parse_table(_decoded(storage.read_bytes(path), str(path)), kind, str(path))


def _decoded(content: bytes | None, name: str) -> str:
    try:
        return (content or b"").decode()
    except UnicodeDecodeError as error:
        raise RunFailed(f"{name} is damaged ({error}): move or delete it") from error


# The last columns that files of earlier versions lack; the fields have defaults.
_ADDED = frozenset({"lengths"})

# In characters. A field of scored_text.csv has a number for each row of text, of which there may be
# more than Python's limit of 131,072 characters allows.
_LONGEST_FIELD = 2**31 - 1


def parse_table(text: str, kind: type[Row], name: str) -> list[Row]:
    """Return the rows in the text of a CSV file, skipping an incomplete last line.

    Raises:
      RunFailed: The text is damaged or contains rows of another kind. The message refers to the
        file as `name`.
    """
    columns, types = _columns(kind), _types(kind)
    lines = _lines(text)
    if lines and _ADDED.issuperset(columns[len(lines[0]) :]):
        columns, types = columns[: len(lines[0])], types[: len(lines[0])]
    if lines and tuple(lines[0]) != columns:
        raise RunFailed(f"{name} does not have the columns {', '.join(columns)}: move or delete it")
    try:
        return [
            kind(*(convert(value) for convert, value in zip(types, line, strict=True)))
            for line in lines[1:]
        ]
    except ValueError as error:
        raise RunFailed(f"{name} is damaged ({error}): move or delete it") from error


def _lines(text: str) -> list[list[str]]:
    """Return the fields of each line in the text of a CSV file, without an incomplete last line."""
    csv.field_size_limit(_LONGEST_FIELD)
    return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))


def remove_later_rows(path: epath.Path, step: int) -> bool:
    """Remove the rows of steps after `step` from a table, and return whether it had any.

    Other processes may write to the table concurrently. A table without the column `step` remains
    unchanged.

    Raises:
      RunFailed: The file is damaged.
    """

    def up_to_step(content: bytes | None) -> str | None:
        try:
            lines = _lines(_decoded(content, str(path)))
        except csv.Error as error:
            raise RunFailed(f"{path} is damaged ({error}): move or delete it") from error
        if not lines or "step" not in lines[0]:
            return None
        at = lines[0].index("step")
        later = [line[at:] and line[at].isdecimal() and int(line[at]) > step for line in lines]
        kept = [line for line, is_later in zip(lines, later, strict=True) if not is_later]
        return _as_text(kept) if len(kept) < len(lines) else None

    if up_to_step(storage.read_bytes(path)) is None:
        return False
    storage.change_text(path, up_to_step)
    return True


def write_table(path: epath.Path, kind: type[Any], rows: Iterable[Any]) -> None:
    """Replace the file atomically, so that a reader never sees an incomplete file."""
    storage.replace_text(path, _in_csv(kind, rows))


def _in_csv(kind: type[Any], rows: Iterable[Any]) -> str:
    return _as_text([_columns(kind), *map(dataclasses.astuple, rows)])


def _as_text(lines: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def merge_table(
    path: epath.Path,
    kind: type[FinishedRow],
    rows: Iterable[FinishedRow],
    replace: bool = False,
    outdated: Callable[[FinishedRow], bool] = lambda row: False,
) -> list[FinishedRow]:
    """Add rows to a file to which other processes may write concurrently.

    If an existing row and a new row have the same key, the existing row is kept unless `replace` is
    set. Existing rows for which `outdated` returns True are removed, unless a new row is equal. The
    file is sorted by step, and rows of the same step are in the order in which they were added.

    Returns:
      All rows of the file after the merge.

    Raises:
      RunFailed: The file is damaged or contains rows of another kind.
    """
    rows = list(rows)
    merged: list[FinishedRow] = []

    def with_ours(content: bytes | None) -> str | None:
        nonlocal merged
        existing = parse_table(_decoded(content, str(path)), kind, str(path))
        merged = [row for row in existing if row in rows or not outdated(row)]
        known = {row.key: row for row in merged}
        new = [r for r in rows if r.key not in known or (replace and known[r.key] != r)]
        if not new and len(merged) == len(existing):
            return None
        written = {row.key for row in new}
        kept = [row for row in merged if row.key not in written]
        merged = sorted([*kept, *new], key=lambda row: row.step)
        return _in_csv(kind, merged)

    storage.change_text(path, with_ours)
    return merged


# What a column of each type accepts: also the scalars of NumPy, but no bool.
_ACCEPTED = {str: str, int: numbers.Integral, float: numbers.Real}


def wrong_value(row: Any) -> str:
    """Return which value of a row a table could not keep, as part of a message, or ""."""
    for name, kind in zip(_columns(type(row)), _types(type(row)), strict=True):
        value = getattr(row, name)
        if isinstance(value, bool) or not isinstance(value, _ACCEPTED.get(kind, object)):
            return f"{name} is {value!r}: it must be {'an' * (kind is int) or 'a'} {kind.__name__}"
    return ""


def _columns(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _types(kind: type[Any]) -> tuple[type[Any], ...]:
    hints = get_type_hints(kind)  # also of class variables
    return tuple(hints[name] for name in _columns(kind))
