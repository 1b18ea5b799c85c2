"""Numbered exercises, determined by (seed, step, row) in training and (seed, length, row) in tests.

A run can therefore resume exactly from its step number on any number of processes, and a test
exercise depends neither on the other lengths that are scored nor on the batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fire_lm.tasks.synthetic.layouts import Layout, Rows, lay_out
from fire_lm.tasks.synthetic.task import Sample, Task

# Each seed begins with one of these numbers, so that no two purposes draw the same random numbers.
# All seeds of a purpose have the same number of parts, even if the last parts are 0: NumPy does not
# distinguish a seed with zeros at its end from the seed without these zeros.
_LENGTH, _TRAINING, _TEST = 1, 2, 3


def training_length(task: Task, max_length: int, seed: int, step: int) -> int:
    """Draw the length of a batch's exercises uniformly from `task.shortest` to `max_length`."""
    task.check_length(max_length)
    rng = np.random.default_rng([_LENGTH, seed, step, 0])
    return int(rng.integers(task.shortest, max_length + 1))


def training_rows(
    task: Task,
    layout: Layout,
    *,
    max_length: int,
    width: int,
    seed: int,
    step: int,
    rows: Iterable[int],
) -> Rows:
    """Return rows of one step's training batch, each with `width` ids.

    Args:
      rows: The numbers of the rows within the batch.

    Raises:
      UserError: The task is not defined up to `max_length`, or an exercise exceeds `width`.
    """
    length = training_length(task, max_length, seed, step)
    drawn = [exercise(task, length, _TRAINING, seed, step, row) for row in rows]
    return lay_out(task, layout, drawn, width)


def fixed_samples(task: Task, length: int, seed: int, rows: Iterable[int]) -> list[Sample]:
    """Return the test exercises of one length whose numbers are `rows`."""
    task.check_length(length)
    return [exercise(task, length, _TEST, seed, length, row) for row in rows]


def exercise(task: Task, length: int, *seeds: int) -> Sample:
    """Generate the exercise of a given length from the parts of its seed."""
    return task.sample(np.random.default_rng(seeds), length)
