"""Scores of predictions under the metrics of their task; neither a model nor a run is needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fire_lm.data.task_examples import Example, TaskExamples, failure
from fire_lm.errors import RunFailed
from fire_lm.processes import say
from fire_lm.tasks.metrics import Score, scores_of
from fire_lm.tasks.metrics.metric import numbers

# The number of bootstrap resamples, for metrics that do not compute their own standard error.
_RESAMPLES = 100


def prediction_scores(task: TaskExamples, texts: Mapping[str, str]) -> dict[str, Score]:
    """Return the values of all metrics, keyed by name.

    Examples on which the postprocessing or a metric fails are reported and excluded.

    Args:
      task: The task.
      texts: The text of each answer, keyed by the id of the example.

    Raises:
      RunFailed: No metric returns a number.
    """
    examples: list[Example] = []
    predictions: list[Any] = []
    lost = dict(task.lost)
    for example in task.examples:
        try:
            predictions.append(task.prediction(texts[example.id], example.fields))
            examples.append(example)
        except Exception as error:  # the task's own code can raise any exception
            lost[example.id] = failure(error)
    _report_lost(f"the postprocess_fn of {task.name}", lost, len(task.examples) + len(task.lost))
    targets = [example.target for example in examples]
    ids = [example.id for example in examples]
    scores: dict[str, Score] = {}
    for metric in task.metrics:
        values, failures = scores_of(metric, targets, predictions, ids)
        name = getattr(metric, "__name__", type(metric).__name__)
        _report_lost(f"the metric {name} of {task.name}", failures, len(ids))
        kept = [index for index, key in enumerate(ids) if key not in failures]
        pairs = [targets[i] for i in kept], [predictions[i] for i in kept]
        for name, score in values.items():
            if math.isnan(score.stderr):
                score = dataclasses.replace(score, stderr=resampled(metric, name, *pairs))
            scores[name] = score
    if not scores:
        raise RunFailed(f"the metrics of {task.name} return no number, so there are no scores")
    return scores


def _report_lost(what: str, lost: Mapping[str, str], total: int) -> None:
    for key, why in list(lost.items())[:3]:
        say(f"{what} fails on example {key}: {why}")
    if lost:
        say(f"{what} fails on {len(lost)} of {total} examples, which are excluded")


def resampled(metric: Any, name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> float:
    """Return a bootstrap estimate of a metric's standard error.

    The result is NaN if there are fewer than two examples, or if the metric fails on a resample. A
    failure is reported.
    """
    if len(targets) < 2:
        return math.nan
    random, values = np.random.default_rng(0), []
    try:
        for _ in range(_RESAMPLES):
            picked = random.integers(len(targets), size=len(targets))
            again = metric([targets[i] for i in picked], [predictions[i] for i in picked])
            values.append(numbers(again)[name])
    except Exception as error:  # a user's metric may need all examples
        say(
            f"the standard error of {name} is unknown, because the metric fails on a resample: "
            f"{failure(error)}"
        )
        return math.nan
    return float(np.std(values, ddof=1))
