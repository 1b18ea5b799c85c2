"""Classification metrics for models that generate labels as text.

A target is the text of a label, or '' if the label is unknown. A prediction may be any text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fire_lm.tasks.metrics.answers import no_references
from fire_lm.tasks.metrics.metric import Metric
from fire_lm.tasks.metrics.uncertainty import ratio


def known(targets: Sequence[str]) -> Sequence[str]:
    """Return the targets after checking that all of them are known.

    Raises:
      UserError: A label is unknown.
    """
    if not all(targets):
        raise no_references()
    return targets


class Accuracy(Metric):
    """The percentage of predictions that are identical to the label."""

    names = ("accuracy",)

    def units(self, targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(known(targets), predictions, strict=True)
        return np.array([[label == given] for label, given in pairs], np.float64)


@dataclasses.dataclass(frozen=True)
class BinaryF1(Metric):
    """The F1 of the positive label in binary classification, in percent.

    Attributes:
      positive, negative: The two labels.
    """

    positive: str
    negative: str
    names = ("f1",)

    def units(self, targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(known(targets), predictions, strict=True)
        return np.array([self.counts(label, given) for label, given in pairs], np.float64)

    def counts(self, label: str, given: str) -> tuple[bool, bool, bool]:
        """Return whether both the prediction and the target are positive, and whether each is.

        A prediction that is neither of the two labels counts as the wrong label, as in T5.
        """
        expected, predicted = label == self.positive, given == self.positive
        if given not in (self.positive, self.negative):
            predicted = not expected
        return expected and predicted, predicted, expected

    def combine(self, means: np.ndarray) -> np.ndarray:
        both, predicted, expected = np.moveaxis(means, -1, 0)
        return ratio(2 * both, predicted + expected)[..., None]


@dataclasses.dataclass(frozen=True)
class MacroF1(Metric):
    """The unweighted mean of the F1 of each label, in percent."""

    labels: tuple[str, ...]
    names = ("f1_macro",)

    def units(self, targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
        expected = _one_hot(known(targets), self.labels)
        predicted = _one_hot(predictions, self.labels)
        return np.concatenate([expected * predicted, expected + predicted], axis=1)

    def combine(self, means: np.ndarray) -> np.ndarray:
        both, either = np.split(means, 2, axis=-1)
        return ratio(2 * both, either).mean(axis=-1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Matthews(Metric):
    """The Matthews correlation for several classes (Gorodkin 2004), in percent.

    Predictions that are not labels form an additional class.
    """

    labels: tuple[str, ...]
    names = ("matthews",)

    def units(self, targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
        expected = _one_hot(known(targets), self.labels)
        predicted = _one_hot(predictions, self.labels)
        right = (expected * predicted).sum(axis=1, keepdims=True)
        neither = 1 - predicted.sum(axis=1, keepdims=True)
        return np.concatenate([right, neither, expected, predicted], axis=1)

    def combine(self, means: np.ndarray) -> np.ndarray:
        right, neither = means[..., 0], means[..., 1]
        expected, predicted = np.split(means[..., 2:], 2, axis=-1)
        covariance = right - (expected * predicted).sum(axis=-1)
        spread = (1 - np.square(expected).sum(axis=-1)) * (
            1 - np.square(predicted).sum(axis=-1) - np.square(neither)
        )
        # If all targets are the same, or all predictions are, the correlation is 0.
        return ratio(covariance, np.sqrt(np.where(spread > 1e-15, spread, 0)))[..., None]


def _one_hot(given: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Return one-hot labels, float64 [examples, labels]; texts that are not labels become zeros."""
    return np.array([[text == label for label in labels] for text in given], np.float64)
