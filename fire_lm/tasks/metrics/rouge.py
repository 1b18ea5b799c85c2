"""ROUGE-1, ROUGE-2 and ROUGE-L as used by SCROLLS for summaries (Lin 2004; Shaham et al. 2022).

The F-measures agree to the last digit with those of the package rouge-score without its stemmer.
That package is not a dependency, because it requires nltk, joblib and regex for operations that
take one line each here, and finds common subsequences in n * m steps of Python code.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence

import numpy as np

from fire_lm.tasks.metrics.answers import f_measure, no_references
from fire_lm.tasks.metrics.metric import Metric

_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """Return the words (sequences of ASCII letters and digits) of a text, in lower case."""
    return _WORD.findall(text.lower())


def rouge_n(predicted: Sequence[str], expected: Sequence[str], n: int) -> float:
    """Return the F-measure of the n-grams of two lists of words."""
    ours, theirs = _grams(predicted, n), _grams(expected, n)
    return f_measure((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Return the F-measure of the longest common subsequence of two lists of words."""
    shared = longest_common_subsequence(predicted, expected)
    return f_measure(shared, len(predicted), len(expected))


def _grams(of: Sequence[str], n: int) -> collections.Counter[tuple[str, ...]]:
    return collections.Counter(zip(*(of[start:] for start in range(n)), strict=False))


def longest_common_subsequence(words: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two lists of words.

    The algorithm updates the bits of a single integer (Hyyrö 2004), and the number of zero bits at
    the end is the length.
    """
    places: dict[str, int] = collections.defaultdict(int)
    for place, word in enumerate(words):
        places[word] |= 1 << place
    every = (1 << len(words)) - 1
    free = every
    for word in other:
        matched = free & places.get(word, 0)
        free = ((free + matched) | (free - matched)) & every
    return len(words) - free.bit_count()


def rouge(prediction: str, references: Sequence[str]) -> tuple[float, float, float]:
    """Return the largest ROUGE-1, ROUGE-2 and ROUGE-L of a prediction over all references.

    Raises:
      UserError: There are no references.
    """
    if not references:
        raise no_references()
    predicted = words(prediction)
    measured = [
        (
            rouge_n(predicted, expected, 1),
            rouge_n(predicted, expected, 2),
            rouge_l(predicted, expected),
        )
        for expected in map(words, references)
    ]
    first, second, longest = (max(column) for column in zip(*measured, strict=True))
    return first, second, longest


class Rouge(Metric):
    """The geometric mean (Rgm) of the mean ROUGE-1, -2 and -L, and these means, in percent."""

    names = ("rgm", "rouge1", "rouge2", "rougeL")

    def units(self, targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
        pairs = zip(targets, predictions, strict=True)
        return np.array([rouge(given, references) for references, given in pairs])

    def combine(self, means: np.ndarray) -> np.ndarray:
        geometric = np.cbrt(np.prod(means, axis=-1, keepdims=True))
        return np.concatenate([geometric, means], axis=-1)
