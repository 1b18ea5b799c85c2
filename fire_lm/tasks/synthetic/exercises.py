"""Exercises by number: those of a batch by (seed, step, row), of a test by (seed, length, row).

A run therefore resumes exactly from its step number, on any number of processes, and a test is the
same whichever lengths or batches it is scored in.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fire_lm.tasks.synthetic.layouts import Layout, Rows, lay_out
from fire_lm.tasks.synthetic.task import Sample, Task

# The first number of every seed, so that no two uses draw the same numbers. No number is omitted at
# the end: NumPy treats a seed that ends in zeros like the seed without them.
_LENGTH, _TRAINING, _TEST = 1, 2, 3


def training_length(task: Task, max_length: int, seed: int, step: int) -> int:
    """Draw the length of a batch's exercises, uniformly from the shortest to max_length."""
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
    """Return rows of the training batch of one step, by their numbers in it, `width` ids wide.

    Raises:
        UserError: The task has no such length, or an exercise is longer than `width`.
    """
    length = training_length(task, max_length, seed, step)
    drawn = [exercise(task, length, _TRAINING, seed, step, row) for row in rows]
    return lay_out(task, layout, drawn, width)


def fixed_samples(task: Task, length: int, seed: int, rows: Iterable[int]) -> list[Sample]:
    """Return the test exercises of one length, by their numbers."""
    task.check_length(length)
    return [exercise(task, length, _TEST, seed, length, row) for row in rows]


def exercise(task: Task, length: int, *seeds: int) -> Sample:
    """Return the exercise with these numbers."""
    return task.sample(np.random.default_rng(seeds), length)
