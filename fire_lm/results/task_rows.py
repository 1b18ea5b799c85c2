"""The rows of `task_scores.csv`: which checkpoints of a run they call the best."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable

from fire_lm.results.tables import TaskScore

FILE = "task_scores.csv"
_SPLIT = "validation"


def steps_by_score(rows: Iterable[TaskScore]) -> list[int]:
    """Return a run's evaluated steps from best to worst.

    Steps are compared by the mean, over all tasks and lengths, of the primary values on validation.
    A step that lacks one of these (so far) is omitted. Of more than two steps, a task or length
    that only one step has was evaluated in addition, and does not count. Only plain results count,
    those of the model as it was trained. The primary value of a task is the first in the file.
    """
    values: dict[int, dict[tuple[str | int, ...], float]] = {}
    for row in rows:
        if row.split == _SPLIT and not row.variant:
            cell = row.key[4:-1]  # without run, encoding, variant, step and metric
            values.setdefault(row.step, {}).setdefault(cell, row.value)
    steps_with = collections.Counter(cell for of_step in values.values() for cell in of_step)
    needed = 2 if len(values) > 2 else 1
    every = {cell for cell, steps in steps_with.items() if steps >= needed}
    means = {
        step: statistics.fmean(of_step[cell] for cell in every)
        for step, of_step in values.items()
        if every and every <= of_step.keys()
    }
    return sorted(means, key=lambda step: (-means[step], step))
