"""The ranking of a run's checkpoints by the rows of `task_scores.csv`."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable

from fire_lm.results.tables import TaskScore

FILE = "task_scores.csv"
_SPLIT = "validation"


def mean_scores(rows: Iterable[TaskScore]) -> dict[int, float]:
    """Return, for each of a run's evaluated steps, the score by which its checkpoint is chosen.

    This score is the mean, over all tasks and lengths, of the primary values on the validation
    split. The primary value of a task is its first value in the file. A task or length that fewer
    than half of the steps have is considered an additional evaluation and is ignored. A step that
    still lacks one of the other values is omitted. Results of the model with changes at evaluation
    are not used.
    """
    values: dict[int, dict[tuple[str | int, ...], float]] = {}
    for row in rows:
        if row.split == _SPLIT and not row.variant:
            cell = row.key[4:-1]  # without run, encoding, variant, step and metric
            values.setdefault(row.step, {}).setdefault(cell, row.value)
    steps_with = collections.Counter(cell for of_step in values.values() for cell in of_step)
    every = {cell for cell, steps in steps_with.items() if 2 * steps >= len(values)}
    return {
        step: statistics.fmean(of_step[cell] for cell in every)
        for step, of_step in values.items()
        if every and every <= of_step.keys()
    }


def steps_by_score(rows: Iterable[TaskScore]) -> list[int]:
    """Return the steps of `mean_scores` from best to worst, with ties in order of the step."""
    means = mean_scores(rows)
    return sorted(means, key=lambda step: (-means[step], step))
