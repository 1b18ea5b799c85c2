"""Metrics against oracles: SCROLLS's scorer written again from its description, and scipy.

Where they are installed, rouge-score and scikit-learn are oracles as well.
"""

import collections
import itertools
import re
import string

import numpy as np
import pytest
from sample_predictions import judged, labels, similarities, summaries
from scipy import stats

from fire_lm.tasks.metrics import (
    F1,
    Accuracy,
    BinaryF1,
    Correlations,
    ExactMatch,
    GroupedLabels,
    MacroF1,
    Matthews,
    Rouge,
)
from fire_lm.tasks.metrics.rouge import rouge

BINARY = ("no", "yes")
CB = ("entailment", "contradiction", "neutral")


def f_measure(shared: int, predicted: int, expected: int) -> float:
    if not shared:
        return 0.0
    precision, recall = shared / predicted, shared / expected
    return 2 * precision * recall / (precision + recall)


def by_counts(prediction: list, reference: list) -> float:
    """Return the F1 of two bags."""
    counts = collections.Counter(prediction), collections.Counter(reference)
    shared = sum(min(number, counts[1][item]) for item, number in counts[0].items())
    return f_measure(shared, len(prediction), len(reference))


def by_subsequence(prediction: list[str], reference: list[str]) -> float:
    """Return the ROUGE-L of two short lists, computing the recurrence row by row."""
    row = [0] * (len(reference) + 1)
    for word in prediction:
        new = [0]
        for place, other in enumerate(reference):
            new.append(row[place] + 1 if word == other else max(row[place + 1], new[-1]))
        row = new
    return f_measure(row[-1], len(prediction), len(reference))


def rouge_words(text: str) -> list[str]:
    """Split lower-case text at everything that is neither an ASCII letter nor a digit."""
    return re.sub("[^a-z0-9]+", " ", text.lower()).split()


def squad_words(text: str) -> list[str]:
    """Return the words of lower-case text without punctuation and articles."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def test_fifty_predictions_by_the_description_of_the_official_scorer():
    """Each score is the best over an example's references, averaged; Rgm combines the averages."""
    references, predictions = summaries()
    assert len(predictions) == 50 and {len(of_one) for of_one in references} == {1, 2, 3}
    best = collections.defaultdict(list)
    for of_one, prediction in zip(references, predictions, strict=True):
        said, squad = rouge_words(prediction), squad_words(prediction)
        candidates = [rouge_words(one) for one in of_one]
        pairs = [list(itertools.pairwise(one)) for one in candidates]
        best["rouge1"].append(max(by_counts(said, one) for one in candidates))
        best["rouge2"].append(max(by_counts(list(itertools.pairwise(said)), one) for one in pairs))
        best["rougeL"].append(max(by_subsequence(said, one) for one in candidates))
        best["f1"].append(max(by_counts(squad, squad_words(one)) for one in of_one))
        best["em"].append(max(squad == squad_words(one) for one in of_one))
    means = {name: 100 * float(np.mean(values)) for name, values in best.items()}
    variants = [means[name] for name in ("rouge1", "rouge2", "rougeL")]
    expected = {"rgm": float(np.prod(variants)) ** (1 / 3)}
    expected |= dict(zip(("rouge1", "rouge2", "rougeL"), variants, strict=True))
    assert Rouge()(references, predictions) == pytest.approx(expected)
    assert F1()(references, predictions) == pytest.approx({"f1": means["f1"]})
    assert ExactMatch()(references, predictions) == pytest.approx({"em": means["em"]})
    assert min(means.values()) > 0


def test_correlations_beside_scipy():
    """Both have ties, because similarities are multiples of 0.2."""
    one, other = similarities()
    assert len(np.unique(one)) < len(one)
    assert Correlations()(one, other) == pytest.approx(
        {
            "pearson": 100 * stats.pearsonr(one, other).statistic,
            "spearman": 100 * stats.spearmanr(one, other).statistic,
        }
    )


@pytest.mark.interop("rouge_score")  # lm-eval installs it, and scikit-learn
def test_against_rouge_score_itself():
    from rouge_score import rouge_scorer as scorers

    scorer = scorers.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    for references, prediction in zip(*summaries(), strict=True):
        for reference in references:
            theirs = scorer.score(reference, prediction)
            expected = tuple(theirs[name].fmeasure for name in ("rouge1", "rouge2", "rougeL"))
            assert rouge(prediction, [reference]) == pytest.approx(expected)


@pytest.mark.interop("sklearn")
def test_against_scikit_learn_itself():
    """A prediction that is no label counts as a class of its own, or as the wrong one of two."""
    from sklearn import metrics

    for names in (BINARY, CB):
        targets, predictions = labels(names)
        assert not set(predictions) <= set(names)
        assert Accuracy()(targets, predictions)["accuracy"] == pytest.approx(
            100 * metrics.accuracy_score(targets, predictions)
        )
        assert Matthews(names)(targets, predictions)["matthews"] == pytest.approx(
            100 * metrics.matthews_corrcoef(targets, predictions)
        )
        assert MacroF1(names)(targets, predictions)["f1_macro"] == pytest.approx(
            100 * metrics.f1_score(targets, predictions, labels=names, average="macro")
        )
    targets, predictions = labels(BINARY)
    wrong = {"no": "yes", "yes": "no"}
    filled = [p if p in BINARY else wrong[t] for t, p in zip(targets, predictions, strict=True)]
    assert BinaryF1("yes", "no")(targets, predictions)["f1"] == pytest.approx(
        100 * metrics.f1_score(targets, filled, pos_label="yes")
    )
    of_answers, given = judged()
    wrong = {"False": "True", "True": "False"}
    filled = [p if p in wrong else wrong[t.label] for t, p in zip(of_answers, given, strict=True)]
    assert GroupedLabels("True", "False")(of_answers, given)["f1a"] == pytest.approx(
        100 * metrics.f1_score([t.label for t in of_answers], filled, pos_label="True")
    )
