"""F1 and exact match of short answers, normalised as SQuAD does (Rajpurkar et al. 2016).

SCROLLS scores Qasper and NarrativeQA by F1, QuALITY and ContractNLI by exact match; ReCoRD uses
both. A prediction is scored against the reference that it fits best.
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
    """Return text in lower case, without ASCII punctuation and articles, with single spaces."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 if both texts are equal after normalisation, else 0."""
    return float(normalised(prediction) == normalised(reference))


def word_f1(prediction: str, reference: str) -> float:
    """Return F1 of the bags of normalised words; 0 if they share none, also if both are empty."""
    predicted, expected = normalised(prediction).split(), normalised(reference).split()
    common = collections.Counter(predicted) & collections.Counter(expected)
    return f_measure(common.total(), len(predicted), len(expected))


def f_measure(overlap: int, predicted: int, expected: int) -> float:
    """Return the harmonic mean of overlap / predicted and overlap / expected; 0 for no overlap."""
    return 2 * overlap / (predicted + expected) if overlap else 0.0


def best(measure: Callable[[str, str], float], references: Sequence[str], prediction: str) -> float:
    """Return the largest value of the measure over all references.

    Raises:
        UserError: There is no reference.
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
    """The percentage of predictions that equal one of the references, after normalisation."""

    names = ("em",)

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(targets, predictions, strict=True)
        return np.array([[best(exact_match, references, given)] for references, given in pairs])


class F1(Metric):
    """The mean F1 of the words of predictions and references, in percent."""

    names = ("f1",)

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(targets, predictions, strict=True)
        return np.array([[best(word_f1, references, given)] for references, given in pairs])


# A reply whose F1 exceeds this counts as the topic.
_NEAR = 0.8


class Mentioned(Metric):
    """LongEval's topics: the percentage of replies that contain a reference or nearly equal one.

    The benchmark's authors judge manually or with a model; `accuracy` counts either kind of reply.
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
    """Return 1 if a prediction contains the words of a reference, after normalisation, else 0."""
    return float(f" {normalised(reference)} " in f" {normalised(prediction)} ")
