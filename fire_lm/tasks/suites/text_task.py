"""Text-to-text tasks and suites of them, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.metrics import Metric, Score, average
from fire_lm.tasks.suites.postprocess import Postprocess
from fire_lm.tasks.suites.rows import Record, Row

# The names that files of a split have in one release or another, by the name that it has here.
SPLIT_FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val", "dev", "validation_matched", "dev_matched"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
    "test": ("test", "test_matched"),
}


def one_record(record: Record) -> Iterator[Record]:
    """The record itself."""
    yield record


@dataclasses.dataclass(frozen=True)
class Official:
    """A data set that others publish, and how its records become rows.

    Attributes:
        folder: of its files of JSON lines; `folder`.zip has the same.
        tfds_names: builders of TFDS that have it, without versions.
        where: where to get it.
        rows: the rows of a record, given whether they are trained on.
        flat: a record of JSON lines as the records that TFDS makes of it.
    """

    folder: str
    tfds_names: tuple[str, ...]
    where: str
    rows: Callable[[Record, bool], Iterator[Row]]
    flat: Callable[[Record], Iterator[Record]] = one_record


@dataclasses.dataclass(frozen=True)
class Generated:
    """Exercises of any size that a seed decides.

    Attributes:
        exercise: makes the row of a key from random numbers and a size.
        largest: size that there is; None: any.
        sizes: of the tests, by default.
    """

    exercise: Callable[[np.random.Generator, int, str], Row]
    largest: int | None
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A data set of texts and answers, and how answers are scored.

    Attributes:
        name: of the data set that is written; seqio's task is `fire_lm:NAME`.
        title: in tables.
        metrics: the first one's first value is the primary one.
        postprocess: what the metrics see.
        target_length: tokens that answers need with EOS, in vocabularies of some 30,000 pieces.
    """

    name: str
    title: str
    origin: Official | Generated
    metrics: tuple[Metric, ...]
    postprocess: Postprocess
    target_length: int

    @property
    def primary(self) -> str:
        """The name of the value by which checkpoints are chosen."""
        return self.metrics[0].names[0]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a suite's table: a value of a metric on a split of a task."""

    title: str
    task: str
    split: str
    metric: str


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks that are reported together.

    Attributes:
        columns: whose unweighted mean is the suite's average.
        lengths: tokens of inputs at which it is evaluated.
        together: whether one model is trained on a mixture of the tasks, at the rates of their
            numbers of training rows; else on each of them.
        not_trained: names of tasks that the mixture leaves out.
        longest_input: inputs of this many tokens or more are left out; None: none is.
    """

    name: str
    tasks: tuple[TextTask, ...]
    columns: tuple[Column, ...]
    lengths: tuple[int, ...]
    together: bool = False
    not_trained: tuple[str, ...] = ()
    longest_input: int | None = None

    def average(self, scores: Mapping[Column, Score]) -> Score:
        """The average over all columns.

        Raises:
            UserError: one has no score.
        """
        missing = [column.title for column in self.columns if column not in scores]
        if missing:
            raise UserError(
                f"the average of {self.name} is over {len(self.columns)} columns; there is no "
                f"score of {', '.join(missing)}"
            )
        return average([scores[column] for column in self.columns])


def primary_columns(*tasks: TextTask) -> tuple[Column, ...]:
    """A column of each task: its primary value on the validation split."""
    return tuple(Column(task.title, task.name, "validation", task.primary) for task in tasks)
