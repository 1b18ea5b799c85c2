"""Data classes that describe text-to-text tasks and suites of tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fire_lm.tasks.metrics import Metric
from fire_lm.tasks.suites.postprocess import Postprocess
from fire_lm.tasks.suites.rows import Record, Row

# The names of each split's files in the various releases, keyed by our name for the split.
SPLIT_FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val", "dev", "validation_matched", "dev_matched"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
    "test": ("test", "test_matched"),
}


def one_record(record: Record) -> Iterator[Record]:
    """Yield the record unchanged."""
    yield record


@dataclasses.dataclass(frozen=True)
class Official:
    """A published data set, with the functions that turn its records into rows.

    Attributes:
      folder: The folder with the data set's JSON Lines files; `folder`.zip contains the same
        files.
      tfds_names: The TFDS builders that provide the data set, without versions.
      where: Instructions for obtaining the data set, for messages.
      rows: Yields the rows of a record; the second argument is True for training.
      flat: Converts a record of a JSON Lines file to records with the fields of TFDS.
    """

    folder: str
    tfds_names: tuple[str, ...]
    where: str
    rows: Callable[[Record, bool], Iterator[Row]]
    flat: Callable[[Record], Iterator[Record]] = one_record


@dataclasses.dataclass(frozen=True)
class Generated:
    """Exercises of a requested size, determined by a seed.

    Attributes:
      exercise: Returns a row, given a random number generator, a size and the row's key.
      largest: The largest size; None if there is no limit.
      sizes: The default sizes of the test exercises.
    """

    exercise: Callable[[np.random.Generator, int, str], Row]
    largest: int | None
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A data set of inputs and answers, with the metrics that score the answers.

    Attributes:
      name: The name of the written data set; the seqio task is called `fire_lm:NAME`.
      title: The task's name in tables.
      origin: The source of the data set.
      metrics: The metrics; the first value of the first metric is the primary value.
      postprocess: Prepares targets and predictions for the metrics.
      target_length: The number of tokens, including EOS, that answers need with a vocabulary of
        about 30,000 pieces.
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
    """A column in the table of a suite: one value of a metric on one split of a task."""

    title: str
    task: str
    split: str
    metric: str


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks that are reported together.

    Attributes:
      name: The name of the suite.
      tasks: The tasks in the suite.
      columns: The columns whose unweighted mean is the suite's average.
      lengths: The input lengths, in tokens, at which the suite is evaluated.
      together: Whether a single model is trained on a mixture of the tasks, at rates proportional
        to their numbers of training rows, instead of a separate model on each task.
      not_trained: The names of tasks that the mixture omits.
    """

    name: str
    tasks: tuple[TextTask, ...]
    columns: tuple[Column, ...]
    lengths: tuple[int, ...]
    together: bool = False
    not_trained: tuple[str, ...] = ()


def primary_columns(*tasks: TextTask) -> tuple[Column, ...]:
    """Return one column per task, with the task's primary value on the validation split."""
    return tuple(Column(task.title, task.name, "validation", task.primary) for task in tasks)
