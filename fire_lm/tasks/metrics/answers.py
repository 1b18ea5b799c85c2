"""F1 and exact match of short answers, normalised as SQuAD does (Rajpurkar et al. 2016).

SCROLLS scores Qasper and NarrativeQA by F1, QuALITY and ContractNLI by exact match; ReCoRD has
both. A prediction counts by the reference that it fits best.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.metrics.metric import Metric

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalised(text: str) -> str:
    """In lower case, without ASCII punctuation and English articles, and with single spaces."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, reference: str) -> float:
    """Whether both are the same after normalisation: 1 or 0."""
    return float(normalised(prediction) == normalised(reference))


def word_f1(prediction: str, reference: str) -> float:
    """F1 of the bags of normalised words; 0 where they share none, also if both are empty."""
    predicted, expected = normalised(prediction).split(), normalised(reference).split()
    common = collections.Counter(predicted) & collections.Counter(expected)
    return f_measure(common.total(), len(predicted), len(expected))


def f_measure(overlap: int, predicted: int, expected: int) -> float:
    """The harmonic mean of overlap / predicted and overlap / expected; 0 without an overlap."""
    return 2 * overlap / (predicted + expected) if overlap else 0.0


def best(measure: Callable[[str, str], float], references: Sequence[str], prediction: str) -> float:
    """The measure against the reference that gives the most.

    Raises:
        UserError: there is no reference.
    """
    if not references:
        raise no_references()
    return max(measure(prediction, reference) for reference in references)


def no_references() -> UserError:
    return UserError(
        "these examples have no references, so they cannot be scored\n"
        "test splits of benchmarks keep theirs secret: score the validation split"
    )


class ExactMatch(Metric):
    """Percent of predictions that equal one of the references, after normalisation."""

    names = ("em",)

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(targets, predictions, strict=True)
        return np.array([[best(exact_match, references, given)] for references, given in pairs])


class F1(Metric):
    """Mean F1 of the words of predictions and references, in percent."""

    names = ("f1",)

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(targets, predictions, strict=True)
        return np.array([[best(word_f1, references, given)] for references, given in pairs])


# Above this F1 a reply counts as the topic.
_NEAR = 0.8


class Mentioned(Metric):
    """LongEval's topics: percent of replies that contain a reference, or are near it by their F1.

    The benchmark's authors judge by hand or by a model; `accuracy` counts a reply that is either.
    """

    names = ("accuracy", "contained", "near")

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        rows = []
        for references, given in zip(targets, predictions, strict=True):
            contained = best(contains, references, given)
            near = float(best(word_f1, references, given) >= _NEAR)
            rows.append([max(contained, near), contained, near])
        return np.array(rows)


def contains(prediction: str, reference: str) -> float:
    """Whether the words of a reference stand in a prediction, after normalisation: 1 or 0."""
    return float(f" {normalised(reference)} " in f" {normalised(prediction)} ")
