"""The rows of `task_scores.csv`: which checkpoints of a run they call the best."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from fire_lm.results.tables import TaskScore

FILE = "task_scores.csv"
_SPLIT = "validation"


def steps_by_score(rows: Iterable[TaskScore]) -> list[int]:
    """A run's evaluated steps, best first: by the mean of the primary values on validation of all
    tasks and lengths; steps that lack one of them (so far) are left out.

    Only plain results count, the model as it was trained. The primary value of a task is the first
    in the file.
    """
    values: dict[int, dict[tuple[str | int, ...], float]] = {}
    for row in rows:
        if row.split == _SPLIT and not row.variant:
            cell = row.key[4:-1]  # without run, encoding, variant, step and metric
            values.setdefault(row.step, {}).setdefault(cell, row.value)
    every = {cell for of_step in values.values() for cell in of_step}
    means = {
        step: statistics.fmean(of_step.values())
        for step, of_step in values.items()
        if of_step.keys() == every
    }
    return sorted(means, key=lambda step: (-means[step], step))
