"""The metrics of MultiRC (Khashabi et al. 2018), in which each question has several answers.

Each answer is an example, and an exact match requires that all answers be judged correctly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fire_lm.tasks.metrics.labels import BinaryF1, known
from fire_lm.tasks.metrics.metric import Metric


class InGroup(NamedTuple):
    """The label of an example, and the name of the group with which the example is scored."""

    group: str
    label: str


@dataclasses.dataclass(frozen=True)
class GroupedLabels(Metric):
    """The exact match of complete groups and the F1 over all examples (F1a), in percent.

    A unit is a group, so that the bootstrap resamples the examples of a group together.

    Attributes:
      positive, negative: The two labels.
    """

    positive: str
    negative: str
    names = ("em", "f1a")

    def units(self, targets: Sequence[InGroup], predictions: Sequence[str]) -> np.ndarray:
        f1 = BinaryF1(self.positive, self.negative)
        known([target.label for target in targets])
        # For each group: whether all predictions so far are correct, and the counts of F1.
        groups: dict[str, list[float]] = {}
        for (group, label), given in zip(targets, predictions, strict=True):
            unit = groups.setdefault(group, [1.0, 0.0, 0.0, 0.0])
            unit[0] *= label == given
            for place, count in enumerate(f1.counts(label, given), start=1):
                unit[place] += count
        return np.array(list(groups.values()))

    def combine(self, means: np.ndarray) -> np.ndarray:
        f1 = BinaryF1(self.positive, self.negative).combine(means[..., 1:])
        return np.concatenate([means[..., :1], f1], axis=-1)
