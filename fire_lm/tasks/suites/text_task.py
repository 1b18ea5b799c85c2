"""Text-to-text tasks and suites of them, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.metrics import Metric, Score, average
from fire_lm.tasks.suites.postprocess import Postprocess
from fire_lm.tasks.suites.rows import Record, Row

# The names of a split's files in any release, keyed by the split's name here.
SPLIT_FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val", "dev", "validation_matched", "dev_matched"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
    "test": ("test", "test_matched"),
}


def one_record(record: Record) -> Iterator[Record]:
    """Yield the record itself."""
    yield record


@dataclasses.dataclass(frozen=True)
class Official:
    """A published data set, and how its records become rows.

    Attributes:
        folder: The folder of its JSON lines; `folder`.zip has the same files.
        tfds_names: The TFDS builders that have it, without versions.
        where: Where to get it.
        rows: Yields the rows of a record, given whether they are for training.
        flat: Converts a record of JSON lines to the records of TFDS.
    """

    folder: str
    tfds_names: tuple[str, ...]
    where: str
    rows: Callable[[Record, bool], Iterator[Row]]
    flat: Callable[[Record], Iterator[Record]] = one_record


@dataclasses.dataclass(frozen=True)
class Generated:
    """Exercises of any size that a seed determines.

    Attributes:
        exercise: Makes the row of a key from random numbers and a size.
        largest: The largest size; None for no limit.
        sizes: The default sizes of the tests.
    """

    exercise: Callable[[np.random.Generator, int, str], Row]
    largest: int | None
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A data set of inputs and answers, and how answers are scored.

    Attributes:
        name: The name of the written data set; seqio's task is `fire_lm:NAME`.
        title: The name in tables.
        metrics: The metrics; the first value of the first one is the primary one.
        postprocess: Returns what the metrics see.
        target_length: The tokens, including EOS, that answers need with some 30,000 pieces.
    """

    name: str
    title: str
    origin: Official | Generated
    metrics: tuple[Metric, ...]
    postprocess: Postprocess
    target_length: int

    @property
    def primary(self) -> str:
        """The name of the value by which checkpoints are selected."""
        return self.metrics[0].names[0]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table of a suite: one value of a metric on a split of a task."""

    title: str
    task: str
    split: str
    metric: str


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks that are reported together.

    Attributes:
        columns: The columns whose unweighted mean is the suite's average.
        lengths: The input lengths in tokens at which it is evaluated.
        together: Whether one model is trained on a mixture of the tasks, at rates proportional to
            their numbers of training rows, instead of one model on each task.
        not_trained: The names of tasks that the mixture omits.
        longest_input: The number of tokens from which inputs are skipped; None skips none.
    """

    name: str
    tasks: tuple[TextTask, ...]
    columns: tuple[Column, ...]
    lengths: tuple[int, ...]
    together: bool = False
    not_trained: tuple[str, ...] = ()
    longest_input: int | None = None

    def average(self, scores: Mapping[Column, Score]) -> Score:
        """Return the average over all columns.

        Raises:
            UserError: A column has no score.
        """
        missing = [column.title for column in self.columns if column not in scores]
        if missing:
            raise UserError(
                f"the average of {self.name} is over {len(self.columns)} columns; there is no "
                f"score of {', '.join(missing)}"
            )
        return average([scores[column] for column in self.columns])


def primary_columns(*tasks: TextTask) -> tuple[Column, ...]:
    """Return a column for each task: its primary value on the validation split."""
    return tuple(Column(task.title, task.name, "validation", task.primary) for task in tasks)
