"""The interface of metrics and of their scores, which include standard errors.

A metric is a seqio metric function, `(targets, predictions) -> {name: value}`. In addition, a
metric provides the numbers whose means determine its values, so that standard errors follow from
the same definition.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fire_lm.errors import RunFailed, UserError, first_line
from fire_lm.tasks.metrics.uncertainty import interval, jackknife

# The values are numbers or, as in seqio, objects such as `seqio.metrics.Scalar`.
MetricFn = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of a metric on a set of examples.

    Attributes:
      value: The value, in percent for all metrics of this package.
      stderr: The standard error of the value; NaN if unknown.
      low, high: The bounds of a 95 % confidence interval; NaN if unknown.
      examples: The number of examples.
    """

    value: float
    stderr: float
    low: float
    high: float
    examples: int


class Metric(abc.ABC):
    """A metric whose values are functions of the means, over all units, of a few numbers.

    A unit is an example or a group of examples that are scored together.

    Attributes:
      names: The names of the values, with the primary value first.
    """

    names: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def units(self, targets: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
        """Return the numbers whose means determine the values, float64 [units, numbers]."""

    def combine(self, means: np.ndarray) -> np.ndarray:
        """Compute values [..., names], as fractions of 1, from float64 means [..., numbers]."""
        return means

    def __call__(self, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        values = 100 * self.combine(self._checked(targets, predictions).mean(axis=0))
        return {name: float(value) for name, value in zip(self.names, values, strict=True)}

    def scores(self, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Score]:
        """Return the values with jackknife standard errors and 95 % bootstrap intervals."""
        units = self._checked(targets, predictions)
        values = self.combine(units.mean(axis=0))
        stderrs = jackknife(units, self.combine)
        lows, highs = interval(units, self.combine)
        table = 100 * np.stack([values, stderrs, lows, highs], axis=1)
        return {
            name: Score(value, stderr, low, high, len(targets))
            for name, (value, stderr, low, high) in zip(self.names, table.tolist(), strict=True)
        }

    def _checked(self, targets: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
        if len(targets) == 0:
            raise UserError("there are no examples to score")
        if len(targets) != len(predictions):
            raise UserError(
                f"there are {len(predictions)} predictions for {len(targets)} examples: pass one "
                "prediction for each example"
            )
        return np.asarray(self.units(targets, predictions), np.float64)


def scores_of(
    metric_fn: MetricFn, targets: Sequence[Any], predictions: Sequence[Any], ids: Sequence[str]
) -> tuple[dict[str, Score], dict[str, str]]:
    """Return the scores by name and, for each skipped example, its id and the reason.

    If the metric function raises an error, it is called on each example separately, and the
    examples on which it raises an error are skipped.

    Raises:
      UserError: The examples have no references.
      RunFailed: The function fails on every example, or on all examples together without those on
        which it fails alone.
    """
    try:
        return _scores(metric_fn, targets, predictions), {}
    except UserError:
        raise
    except Exception as error:
        whole = error
    failures: dict[int, str] = {}
    for index in range(len(targets)):
        try:
            metric_fn(targets[index : index + 1], predictions[index : index + 1])
        except Exception as error:
            failures[index] = first_line(error)
    kept = [index for index in range(len(targets)) if index not in failures]
    name = getattr(metric_fn, "__name__", type(metric_fn).__name__)
    if failures and kept:
        rest = [targets[index] for index in kept], [predictions[index] for index in kept]
        try:
            return _scores(metric_fn, *rest), {ids[index]: why for index, why in failures.items()}
        except Exception as error:
            whole = error
    where = "every example" if not kept else "all examples together"
    raise RunFailed(f"the metric {name} fails on {where}: {first_line(whole)}") from whole


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return a metric's values that are numbers or seqio's `Scalar`; others are left out."""
    scores = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):  # such as seqio's `Text`
            scores[name] = float(getattr(value, "value", value))
    return scores


def _scores(
    metric_fn: MetricFn, targets: Sequence[Any], predictions: Sequence[Any]
) -> dict[str, Score]:
    if isinstance(metric_fn, Metric):
        return metric_fn.scores(targets, predictions)
    return {
        name: Score(value, math.nan, math.nan, math.nan, len(targets))
        for name, value in numbers(metric_fn(targets, predictions)).items()
    }
