"""The columns of tables of scores on text-to-text tasks, and the model of each row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from fire_lm.reporting.series import grouped
from fire_lm.results.folder import RunFacts
from fire_lm.results.tables import TaskScore
from fire_lm.tasks.suites import SUITES, TASKS, Suite
from fire_lm.tasks.suites import Column as SuiteColumn

_UNKNOWN = Suite("", (), (), ())


@dataclasses.dataclass(frozen=True)
class Column(SuiteColumn):
    """A column in the table of a suite.

    Attributes:
      length: The input length in tokens if the column is for a single length, otherwise None.
    """

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
    placed = ((row, of.get((_task(row), _split(row), row.metric))) for row in rows)
    lengths = has_lengths(known)
    return {row: _at(one, row.input_length if lengths else None) for row, one in placed if one}


def _at(column: SuiteColumn, length: int | None = None) -> Column:
    title = column.title if length is None else f"{length:,}"
    return Column(title, column.task, column.split, column.metric, length)


def _columns_by_split(rows: Sequence[TaskScore]) -> dict[TaskScore, Column]:
    """Return the column of each row with a task's primary metric, for a suite without columns.

    There is a column for each task and split. If a split was evaluated at several input lengths,
    there is a column for each length, except for the splits of sizes.
    """
    primary = [some[0] for some in grouped(rows, lambda row: row.key[:-1]).values()]
    splits = grouped(primary, lambda row: (_task(row), _split(row)))
    several_tasks = len({task for task, _ in splits}) > 1
    found = {}
    for (task, split), some in splits.items():
        title = f"{title_of(task)}, {split}" if several_tasks else split
        several = len({row.input_length for row in some}) > 1
        for row in some:
            column = Column(title, task, split, row.metric)
            if several and column.size is None:
                of_length = f"{title}, {row.input_length:,}"
                column = dataclasses.replace(column, title=of_length, length=row.input_length)
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
    if has_lengths(known):
        lengths = {*known.lengths, *(column.length for column in columns if column.length)}
        return [_at(known.columns[0], length) for length in sorted(lengths)]
    if known.columns:
        return [_at(column) for column in known.columns]
    return sorted(set(columns), key=lambda c: (c.task, c.size or 0, c.split, c.length or 0))


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
    of_name = grouped(others, lambda row: names[row.run])
    several = {name for name, rows in of_name.items() if len({others[row] for row in rows}) > 1}
    tasks = {*TASKS, *(column.task for column in placed.values())}
    return {
        row: Model(names[row.run], other * (other in tasks or names[row.run] in several))
        for row, other in others.items()
    }


def _finetuned_on(facts: RunFacts) -> str:
    """Return the task or mixture on which a run was finetuned, or "" for other runs."""
    name, finetuned, _ = facts.data.partition(", one example per row")
    return name.removeprefix("fire_lm:") if finetuned else ""
