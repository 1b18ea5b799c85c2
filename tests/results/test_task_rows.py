"""The best checkpoints by task scores."""

from etils import epath

from fire_lm.results import TaskScore, merge_table
from fire_lm.results.task_rows import FILE, steps_by_score
from fire_lm.runs.saved import best_steps


def score(step, value, **changed):
    fields = dict(
        run="r", encoding="fire", variant="", step=step, suite="s", task="t", split="validation",
        input_length=512, target_length=8, truncation="head", decoding="greedy",
        context_length=521, metric="f1", examples=9, value=value, stderr=1.0,
    )  # fmt: skip
    return TaskScore(**fields | changed)


def test_steps_are_ranked_by_the_mean_of_their_primary_values():
    rows = [
        *(score(1, 10.0), score(1, 90.0, metric="em"), score(1, 30.0, task="u")),
        *(score(2, 40.0), score(2, 10.0, metric="em"), score(2, 4.0, task="u")),
        *(score(3, 15.0), score(3, 27.0, task="u")),
    ]
    assert steps_by_score(rows) == [2, 3, 1]


def test_a_step_that_is_evaluated_in_part_is_left_out():
    rows = [score(1, 10.0), score(1, 20.0, input_length=2048), score(2, 99.0)]
    assert steps_by_score(rows) == [1]
    assert steps_by_score([*rows, score(2, 0.0, input_length=2048)]) == [2, 1]


def test_what_only_one_of_several_steps_has_does_not_count():
    rows = [score(step, value) for step, value in ((1, 30.0), (2, 10.0), (3, 20.0))]
    assert steps_by_score([*rows, score(2, 99.0, decoding="beam-4")]) == [1, 3, 2]


def test_other_splits_and_variants_do_not_count():
    rows = [
        score(1, 10.0),
        score(2, 20.0),
        score(1, 99.0, split="test"),
        score(1, 99.0, split="validation, 5 drawn"),
        score(1, 99.0, variant="PI"),
    ]
    assert steps_by_score(rows) == [2, 1]
    assert steps_by_score([]) == []


def test_a_run_without_sweeps_is_ranked_by_them(tmp_path):
    merge_table(epath.Path(tmp_path) / FILE, TaskScore, [score(5, 1.0), score(7, 2.0)])
    assert best_steps(epath.Path(tmp_path), "fire") == [7, 5]
