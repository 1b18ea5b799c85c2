"""Metrics for text-to-text tasks, and their uncertainty.

A metric is a seqio metric function: `metric(targets, predictions)` returns values in percent, keyed
by name. The first value is the primary one. `metric.scores` also returns standard errors and
confidence intervals. All metrics but `Mentioned` and `Identical` agree with the
official scorers.
"""

from fire_lm.tasks.metrics.answers import F1, ExactMatch, Identical, Mentioned
from fire_lm.tasks.metrics.correlation import Correlations
from fire_lm.tasks.metrics.grouped import GroupedLabels, InGroup
from fire_lm.tasks.metrics.labels import Accuracy, BinaryF1, MacroF1, Matthews
from fire_lm.tasks.metrics.metric import Metric, MetricFn, Score, scores_of
from fire_lm.tasks.metrics.rouge import Rouge

__all__ = [
    "Accuracy",
    "BinaryF1",
    "Correlations",
    "ExactMatch",
    "F1",
    "GroupedLabels",
    "Identical",
    "InGroup",
    "MacroF1",
    "Matthews",
    "Mentioned",
    "Metric",
    "MetricFn",
    "Rouge",
    "Score",
    "scores_of",
]
