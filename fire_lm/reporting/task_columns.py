"""The columns of tables of scores on text-to-text tasks, and the model of each row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from fire_lm.results.folder import RunFacts
from fire_lm.results.tables import TaskScore
from fire_lm.tasks.suites import SUITES, TASKS, Suite

_UNKNOWN = Suite("", (), (), ())


@dataclasses.dataclass(frozen=True)
class Column:
    """A column in the table of a suite.

    Attributes:
      title: The heading of the column.
      task: The name of the task, as in its suite.
      metric: The name of the metric.
      split: The split of the data set.
      length: The input length in tokens if the column is for a single length, otherwise None.
    """

    title: str
    task: str
    metric: str
    split: str
    length: int | None = None

    @property
    def size(self) -> int | None:
        """The size of the generated exercises, or None if the split is not that of a size."""
        found = re.fullmatch(r"size_(\d+)", self.split)
        return int(found[1]) if found else None


def columns_of(suite: str, rows: Sequence[TaskScore]) -> dict[TaskScore, Column]:
    """Return the column of each row in the table of a suite; rows without a column are omitted."""
    known = SUITES.get(suite, _UNKNOWN)
    if not known.columns:
        return _columns_by_split(rows)
    of = {(column.task, column.split, column.metric): column for column in known.columns}
    found = {}
    for row in rows:
        one = of.get((_task(row), _split(row), row.metric))
        if one is not None:
            length = row.input_length if has_lengths(known) else None
            title = one.title if length is None else f"{length:,}"
            found[row] = Column(title, one.task, one.metric, one.split, length)
    return found


def _columns_by_split(rows: Sequence[TaskScore]) -> dict[TaskScore, Column]:
    """Return the column of each row with a task's primary metric, for a suite without columns.

    There is a column for each task and split. If a split was evaluated at several input lengths,
    there is a column for each length, except for the splits of sizes.
    """
    primary: dict[tuple[str | int, ...], TaskScore] = {}
    for row in rows:
        primary.setdefault(row.key[:-1], row)
    tasks = {_task(row) for row in rows}
    lengths: dict[tuple[str, str], set[int]] = {}
    for row in primary.values():
        lengths.setdefault((_task(row), _split(row)), set()).add(row.input_length)
    found = {}
    for row in primary.values():
        task, split = _task(row), _split(row)
        title = f"{title_of(task)}, {split}" if len(tasks) > 1 else split
        column = Column(title, task, row.metric, split)
        if len(lengths[task, split]) > 1 and column.size is None:
            column = dataclasses.replace(
                column, title=f"{title}, {row.input_length:,}", length=row.input_length
            )
        found[row] = column
    return found


def has_lengths(suite: Suite) -> bool:
    """Return whether the columns of a suite's table are input lengths."""
    return len(suite.lengths) > 1 and len(suite.columns) == 1


def _task(row: TaskScore) -> str:
    return row.task.removeprefix("fire_lm:")


def title_of(task: str) -> str:
    return TASKS[task].title if task in TASKS else task


def _split(row: TaskScore) -> str:
    """Return the split without the number of examples that were drawn from it."""
    return row.split.partition(", ")[0]


def in_order(suite: str, columns: Iterable[Column]) -> list[Column]:
    """Return the distinct columns of a suite's table in display order.

    The columns of the suite itself are included even if they have no scores.
    """
    known = SUITES.get(suite, _UNKNOWN)
    order = {(column.task, column.metric): place for place, column in enumerate(known.columns)}
    there = set(columns)
    if has_lengths(known):
        (one,) = known.columns
        there |= {Column(f"{n:,}", one.task, one.metric, one.split, n) for n in known.lengths}
    else:
        there |= {Column(c.title, c.task, c.metric, c.split) for c in known.columns}
    return sorted(
        there,
        key=lambda column: (
            order.get((column.task, column.metric), 0),
            column.task,
            column.size or 0,
            column.split,
            column.length or 0,
        ),
    )


def columns_of_average(suite: str, columns: Sequence[Column]) -> list[Column]:
    """Return the columns of the suite's average, or [] if the suite has no average.

    Averages are taken over data sets or over lengths, but not over the metrics of a data set.
    """
    known = SUITES.get(suite, _UNKNOWN)
    if has_lengths(known):
        return [column for column in columns if column.length in known.lengths]
    several = len({column.task for column in known.columns}) == len(known.columns) > 1
    return list(columns) if several else []


@dataclasses.dataclass(frozen=True)
class Model:
    """The model of a row: its name, and `TaskLine.finetuned_on`."""

    name: str
    finetuned_on: str

    def __str__(self) -> str:
        if not self.finetuned_on:
            return self.name
        name = self.name.replace(", finetuned", "", 1)
        return f"{name}, finetuned on {title_of(self.finetuned_on)}"


def models_of(
    placed: Mapping[TaskScore, Column], names: Mapping[str, str], facts: Mapping[str, RunFacts]
) -> dict[TaskScore, Model]:
    """Return the model of each row; `names` has the name of each run's model.

    Runs share this name if they were finetuned on different tasks, so it alone does not say whether
    their scores on one task belong together.
    """
    others = {row: _finetuned_on(facts[row.run]) for row in placed}
    others = {row: "" if other == placed[row].task else other for row, other in others.items()}
    of_name: dict[str, set[str]] = {}
    for row, other in others.items():
        of_name.setdefault(names[row.run], set()).add(other)
    tasks = {*TASKS, *(column.task for column in placed.values())}
    return {
        row: Model(name, other * (other in tasks or len(of_name[name]) > 1))
        for row, other in others.items()
        for name in [names[row.run]]
    }


def _finetuned_on(facts: RunFacts) -> str:
    """Return the task or mixture on which a run was finetuned, or "" for other runs."""
    name, finetuned, _ = facts.data.partition(", one example per row")
    return name.removeprefix("fire_lm:") if finetuned else ""
