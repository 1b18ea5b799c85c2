"""F1 and exact match of short answers, normalised as in SQuAD (Rajpurkar et al. 2016).

SCROLLS scores Qasper and NarrativeQA by F1, and QuALITY and ContractNLI by exact match; ReCoRD uses
both. A prediction's score is the best over all references.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.metrics.metric import Metric

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalised(text: str) -> str:
    """Return the text in lower case, with single spaces and no ASCII punctuation or articles."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 if the texts are identical after normalisation, else 0."""
    return float(normalised(prediction) == normalised(reference))


def identical(prediction: str, reference: str) -> float:
    """Return 1 if the texts are identical apart from spaces at both ends, else 0."""
    return float(prediction.strip() == reference.strip())


def word_f1(prediction: str, reference: str) -> float:
    """Return the F1 between the bags of words of two texts after normalisation.

    The value is 0 if the texts share no word, even if both are empty.
    """
    predicted, expected = normalised(prediction).split(), normalised(reference).split()
    common = collections.Counter(predicted) & collections.Counter(expected)
    return f_measure(common.total(), len(predicted), len(expected))


def f_measure(overlap: int, predicted: int, expected: int) -> float:
    """Return the harmonic mean of overlap / predicted and overlap / expected; 0 if overlap is 0."""
    return 2 * overlap / (predicted + expected) if overlap else 0.0


def best(measure: Callable[[str, str], float], references: Sequence[str], prediction: str) -> float:
    """Return the largest value of `measure` for the prediction over all references.

    Raises:
      UserError: There are no references.
    """
    if not references:
        raise no_references()
    return max(measure(prediction, reference) for reference in references)


def no_references(examples: str = "these examples") -> UserError:
    return UserError(
        f"{examples} have no reference answers, so they cannot be scored\n"
        "benchmarks withhold the answers of their test splits: score the validation split"
    )


class BestMatch(Metric):
    """The mean, in percent, of the best value of `measure` for a prediction over its references."""

    measure: ClassVar[Callable[[str, str], float]]

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        pairs, measure = zip(targets, predictions, strict=True), type(self).measure
        return np.array([[best(measure, references, given)] for references, given in pairs])


class ExactMatch(BestMatch):
    """The percentage of predictions that are identical to a reference after normalisation."""

    names, measure = ("em",), exact_match


class Identical(BestMatch):
    """The percentage of predictions that are a reference, apart from spaces at both ends."""

    names, measure = ("exact_match",), identical


class F1(BestMatch):
    """The mean word F1 between predictions and references, in percent."""

    names, measure = ("f1",), word_f1


# A reply nearly matches a reference if the F1 of their words is at least this value.
_NEAR = 0.8


class Mentioned(Metric):
    """The percentage of replies that contain or nearly match a reference, for LongEval's topics.

    The benchmark's authors judge replies manually or with a model. Here, `contained` counts replies
    that contain a reference, `near` counts replies that nearly match a reference, and `accuracy`
    counts both.
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
    """Return 1 if the normalised prediction contains the normalised reference as words, else 0."""
    return float(f" {normalised(reference)} " in f" {normalised(prediction)} ")
