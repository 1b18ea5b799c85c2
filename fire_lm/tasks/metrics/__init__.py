"""Metrics of text-to-text tasks, equal to those of the official scorers, with their uncertainty.

A metric is a metric function of seqio: `metric(targets, predictions)` returns its values by name,
in percent, the primary one first. `metric.scores` adds standard errors and intervals.
"""

from fire_lm.tasks.metrics.answers import F1, ExactMatch, Mentioned
from fire_lm.tasks.metrics.correlation import Correlations
from fire_lm.tasks.metrics.grouped import GroupedLabels, InGroup
from fire_lm.tasks.metrics.labels import Accuracy, BinaryF1, MacroF1, Matthews
from fire_lm.tasks.metrics.metric import Metric, MetricFn, Score, average, scores_of
from fire_lm.tasks.metrics.rouge import Rouge

__all__ = [
    "Accuracy",
    "BinaryF1",
    "Correlations",
    "ExactMatch",
    "F1",
    "GroupedLabels",
    "InGroup",
    "MacroF1",
    "Matthews",
    "Mentioned",
    "Metric",
    "MetricFn",
    "Rouge",
    "Score",
    "average",
    "scores_of",
]
