"""Metrics: examples of the official scorers, golden numbers, and each value's uncertainty.

The golden numbers are those of rouge-score, scikit-learn and scipy.
"""

import math

import numpy as np
import pytest
from sample_predictions import judged, labels, similarities, summaries

from fire_lm.errors import RunFailed, UserError
from fire_lm.tasks.metrics import (
    F1,
    Accuracy,
    BinaryF1,
    Correlations,
    ExactMatch,
    GroupedLabels,
    InGroup,
    MacroF1,
    Matthews,
    Rouge,
    scores_of,
)
from fire_lm.tasks.metrics.answers import exact_match, normalised, word_f1
from fire_lm.tasks.metrics.correlation import ranked
from fire_lm.tasks.metrics.rouge import longest_common_subsequence, rouge, rouge_l, rouge_n, words
from fire_lm.tasks.suites.postprocess import similarity

# From the docstring of the official metric of SCROLLS.
PREDICTIONS = ["exact match example", "hello there", "general kenobi"]
REFERENCES = [["exact match example"], ["hello", "hi there"], ["commander kenobi"]]

BINARY = ("no", "yes")
CB = ("entailment", "contradiction", "neutral")


def test_the_fixture_of_scrolls():
    assert Rouge()(REFERENCES, PREDICTIONS) == pytest.approx(
        {"rgm": 55.8136, "rouge1": 72.2222, "rouge2": 33.3333, "rougeL": 72.2222}, abs=5e-5
    )
    assert F1()(REFERENCES, PREDICTIONS) == pytest.approx({"f1": 72.2222}, abs=5e-5)
    assert ExactMatch()(REFERENCES, PREDICTIONS) == pytest.approx({"em": 33.3333}, abs=5e-5)


def test_fifty_made_predictions():
    """Golden numbers of 2026-11-24: rouge-score 0.1.2 without its stemmer, and SQuAD's rules."""
    assert Rouge()(*summaries()) == pytest.approx(
        {
            "rgm": 48.96129052720706,
            "rouge1": 64.52693322976614,
            "rouge2": 32.143216651770366,
            "rougeL": 56.588503493373366,
        }
    )
    assert F1()(*summaries()) == pytest.approx({"f1": 63.542722353374295})
    assert ExactMatch()(*summaries()) == pytest.approx({"em": 4.0})


def test_the_geometric_mean_is_of_the_means_of_the_data_set():
    """The mean of the examples' geometric means would be 0 where an example shares no pair."""
    values = Rouge()([["one two"], ["one three"]], ["one two", "one"])
    assert values["rgm"] == pytest.approx(
        (values["rouge1"] * values["rouge2"] * values["rougeL"]) ** (1 / 3)
    )
    assert values["rouge2"] == 50 and values["rgm"] > 50


def test_each_variant_of_rouge_has_its_own_best_reference():
    references = ["a b c d", "d c b a x"]
    assert rouge("a b d c b a", references) == (
        max(rouge_n(words("a b d c b a"), words(r), 1) for r in references),
        rouge_n(words("a b d c b a"), words(references[1]), 2),
        max(rouge_l(words("a b d c b a"), words(r)) for r in references),
    )


def test_rouge_l_is_of_the_whole_text_and_not_of_its_lines():
    assert rouge("b a\nd c", ["a b\nc d"])[2] == 0.5  # rougeLsum would find two words in each


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_common_subsequence(seed):
    """The length equals that from the recurrence that defines it."""
    rng = np.random.default_rng(seed)
    one, other = (list(map(str, rng.integers(0, 5, rng.integers(0, 90)))) for _ in range(2))
    table = np.zeros((len(one) + 1, len(other) + 1), int)
    for i, a in enumerate(one, start=1):
        for j, b in enumerate(other, start=1):
            table[i, j] = (
                table[i - 1, j - 1] + 1 if a == b else max(table[i - 1, j], table[i, j - 1])
            )
    assert longest_common_subsequence(one, other) == table[-1, -1]


def test_texts_with_nothing_in_common():
    for prediction in ("", "漢字", "nothing shared"):
        assert rouge(prediction, ["some reference"]) == (0, 0, 0)
    assert rouge("word", ["word"]) == (1, 0, 1)  # a single word has no pairs
    assert word_f1("", "") == 0 and exact_match("", "the") == 1


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The  Cat, an apple\n", "cat apple"),
        ("a.m. U.S.", "am us"),
        ("theatre another", "theatre another"),
        ("Ärger 漢字 “quoted”", "ärger 漢字 “quoted”"),
    ],
)
def test_squad_normalisation(text, expected):
    assert normalised(text) == expected


def test_golden_numbers_of_scikit_learn():
    """Version 1.9.1; a non-label is the wrong label (F1) or one more class (Matthews)."""
    assert Accuracy()(*labels(BINARY)) == pytest.approx({"accuracy": 72.0})
    assert BinaryF1("yes", "no")(*labels(BINARY)) == pytest.approx({"f1": 76.85950413223141})
    assert Matthews(BINARY)(*labels(BINARY)) == pytest.approx({"matthews": 49.86995870266184})
    assert Accuracy()(*labels(CB)) == pytest.approx({"accuracy": 74.5})
    assert MacroF1(CB)(*labels(CB)) == pytest.approx({"f1_macro": 76.86442883164194})
    assert Matthews(CB)(*labels(CB)) == pytest.approx({"matthews": 62.287502742470316})
    assert GroupedLabels("True", "False")(*judged()) == pytest.approx(
        {"em": 23.333333333333332, "f1a": 82.80254777070064}
    )
    assert Correlations()(*similarities()) == pytest.approx(
        {"pearson": 79.62570850461105, "spearman": 80.53880794247213}
    )


def test_a_question_is_right_where_all_of_its_answers_are():
    targets = [InGroup(g, label) for g, label in (("a", "True"), ("b", "True"), ("a", "False"))]
    metric = GroupedLabels("True", "False")
    assert metric(targets, ["True", "True", "False"]) == {"em": 100, "f1a": 100}
    assert metric(targets, ["True", "True", "True"]) == {"em": 50, "f1a": 80}
    assert metric(targets, ["", "True", "nonsense"])["em"] == 50


@pytest.mark.parametrize(
    "metric, same",
    [
        (Matthews(BINARY), (["yes", "no"], ["yes", "yes"])),
        (Matthews(BINARY), (["yes", "yes"], ["yes", "no"])),
        (BinaryF1("yes", "no"), (["no", "no"], ["no", "no"])),
        (Correlations(), ([1.0, 2.0], [3.0, 3.0])),
    ],
)
def test_the_floor_where_nothing_varies(metric, same):
    scores = metric.scores(*same).values()
    assert all(score.value == 0 and math.isfinite(score.stderr) for score in scores)


def test_ranks_of_equal_values():
    assert ranked(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


ALL = [
    (Rouge(), summaries()),
    (F1(), summaries()),
    (ExactMatch(), summaries()),
    (Accuracy(), labels(CB)),
    (BinaryF1("yes", "no"), labels(BINARY)),
    (MacroF1(CB), labels(CB)),
    (Matthews(CB), labels(CB)),
    (GroupedLabels("True", "False"), judged()),
    (Correlations(), similarities()),
]


@pytest.mark.parametrize("metric, pairs", ALL, ids=lambda value: type(value).__name__)
def test_scores_are_the_values_with_their_uncertainty(metric, pairs):
    """Jackknife and bootstrap agree for smooth functions of means, and repeat exactly."""
    scores = metric.scores(*pairs)
    assert {name: score.value for name, score in scores.items()} == metric(*pairs)
    assert scores == metric.scores(*pairs)
    for score in scores.values():
        assert score.examples == len(pairs[0])
        assert score.low < score.value < score.high
        assert (score.high - score.low) / (2 * 1.96) == pytest.approx(score.stderr, rel=0.25)


def test_the_standard_error_of_a_mean():
    score = Accuracy().scores(*labels(CB))["accuracy"]
    share, count = score.value / 100, score.examples
    assert score.stderr == pytest.approx(100 * math.sqrt(share * (1 - share) / (count - 1)))
    one = Accuracy().scores(["yes"], ["yes"])["accuracy"]
    assert one.value == 100 and math.isnan(one.stderr) and math.isnan(one.low)


def test_examples_of_a_group_are_drawn_together():
    """Ten equal answers to each question carry no more information than one."""
    targets, predictions = judged(40)
    metric = GroupedLabels("True", "False")
    once, ten_times = (metric.scores(targets * n, predictions * n)["f1a"] for n in (1, 10))
    assert ten_times.stderr == pytest.approx(once.stderr)


@pytest.mark.parametrize("metric", [Rouge(), F1(), ExactMatch()])
def test_examples_without_references_are_refused(metric):
    with pytest.raises(UserError, match="no reference answers(.|\n)*score the validation split"):
        metric([["one"], []], ["one", "two"])


def test_labels_that_are_unknown_are_refused():
    with pytest.raises(UserError, match="no reference answers"):
        Accuracy()(["yes", ""], ["yes", "no"])
    with pytest.raises(UserError, match="no reference answers"):
        GroupedLabels("True", "False")([InGroup("a", "")], ["True"])
    with pytest.raises(UserError, match="no reference answers"):
        Correlations()([similarity("", {"answers": []}, is_target=True), 3.0], [3.0, 3.0])


def test_no_examples_and_other_numbers_of_them_are_refused():
    with pytest.raises(UserError, match="no examples to score"):
        Accuracy()([], [])
    with pytest.raises(UserError, match="1 predictions for 2 examples"):
        Accuracy()(["a", "b"], ["a"])


def of_a_user(targets, predictions):
    return {
        "longer": 100
        * float(np.mean([len(p) > len(t) for t, p in zip(targets, predictions, strict=True)]))
    }


def test_a_plain_metric_function_has_no_standard_error():
    scores, failed = scores_of(of_a_user, ["a", "bb"], ["aa", "b"], ["1", "2"])
    assert scores["longer"].value == 50 and math.isnan(scores["longer"].stderr) and not failed


def test_an_example_on_which_a_metric_fails_is_named_and_the_rest_counted():
    scores, failed = scores_of(of_a_user, ["a", None, "bb"], ["aa", "b", "b"], ["q1", "q2", "q3"])
    assert scores["longer"].value == 50 and scores["longer"].examples == 2
    assert list(failed) == ["q2"] and "NoneType" in failed["q2"]
    with pytest.raises(RunFailed, match="of_a_user fails on every example: .*NoneType"):
        scores_of(of_a_user, [None], ["b"], ["q2"])
    with pytest.raises(UserError, match="no reference answers"):
        scores_of(F1(), [[], ["a"]], ["a", "a"], ["q1", "q2"])

    def of_pairs(targets, predictions):
        return {"odd": sum(map(len, targets)) / (len(targets) % 2)}

    with pytest.raises(RunFailed, match="of_pairs fails on all examples together: .*division"):
        scores_of(of_pairs, ["a", None, "b"], ["a", "b", "c"], ["q1", "q2", "q3"])
