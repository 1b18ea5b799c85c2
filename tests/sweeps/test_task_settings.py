"""The examples of a task that `fire-lm evaluate` answers: selected, drawn, and checked."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from fire_lm.data import TextToText
from fire_lm.data.task_examples import Example, TaskExamples
from fire_lm.errors import UserError
from fire_lm.measures.selected_examples import drawn, selected
from fire_lm.measures.task_scores import TextEvaluation

DATA = TextToText("mine", 6)


def example(number, **changed):
    return Example(
        **{"id": f"q{number}", "tokens": np.arange(3, 13), "input_length": 10, "answers": ("a",),
           "choices": (), "target": ["a"], "fields": {}} | changed
    )  # fmt: skip


def test_examples_are_drawn_alike_and_in_order():
    task = TaskExamples("t", [example(n) for n in range(30)], lambda text, fields: text, [])
    ids = [one.id for one in drawn(task, 10).examples]
    assert ids == [one.id for one in drawn(task, 10).examples] and len(set(ids)) == 10
    assert ids == [f"q{n}" for n in sorted(np.random.default_rng(0).permutation(30)[:10])]
    assert drawn(task, None) is task is drawn(task, 30)


def test_examples_that_are_scored_together_are_selected_together():
    """MultiRC's exact match needs all answers to a question; each answer is an example."""
    examples = [example(n, fields={"group": f"q{n // 3}".encode()}) for n in range(30)]
    task = TaskExamples("t", examples, lambda text, fields: text, [])
    groups = [one.fields["group"] for one in drawn(task, 8).examples]
    assert len(groups) == 9 and {groups.count(one) for one in groups} == {3}
    alone = TaskExamples("t", examples[::3], lambda text, fields: text, [])
    assert set(groups) == {one.fields["group"] for one in drawn(alone, 3).examples}

    longer = dataclasses.replace(examples[4], input_length=20)
    task = dataclasses.replace(task, examples=[*examples[:4], longer, *examples[5:9]])
    assert [one.id for one in task.with_inputs_below(11).examples] == [
        f"q{n}" for n in (0, 1, 2, 6, 7, 8)
    ]
    task = dataclasses.replace(task, examples=task.examples[3:6])
    with pytest.raises(UserError, match="fewer than 11 tokens .the shortest has 20.: raise"):
        task.with_inputs_below(11)


def test_short_inputs_are_selected_before_others_are_drawn(capsys):
    """Inputs below the bound are selected by their untruncated length; the row's split says so."""
    examples = [example(n, input_length=n) for n in range(1, 31)]
    task = TaskExamples("t", examples, lambda text, fields: text, [])
    asked = TextEvaluation(DATA, (8,), inputs_below=20)
    kept = selected(task, asked.inputs_below, asked.examples)
    assert [one.input_length for one in kept.examples] == list(range(1, 20))
    assert "19 of 30 inputs of t have fewer than 20 tokens" in capsys.readouterr().out
    assert asked.split_name == "validation, inputs below 20"
    some = dataclasses.replace(asked, examples=5)
    assert some.split_name == "validation, inputs below 20, 5 drawn"
    few = selected(task, some.inputs_below, some.examples).examples
    assert len(few) == 5 and max(one.input_length for one in few) < 20
    # A task with fewer examples has the same name, so that reports show one line for both.
    many = dataclasses.replace(asked, examples=99)
    assert many.split_name.endswith("below 20, 99 drawn")
    assert selected(task, None, None) is task
    with pytest.raises(
        UserError, match=r"no input of t has fewer than 1 tokens \(the shortest has 1\): raise"
    ):
        selected(task, 1, None)


def test_examples_without_answers_are_refused_before_any_is_answered():
    """The rows of a test split have no answers. A user's own metric may not need any."""
    examples = [example(n, fields={"answers": answers}) for n, answers in enumerate(([b"a"], []))]
    task = TaskExamples("t", examples, lambda text, fields: text, [])
    data = TextToText("fire_lm:t", 6, data_dir="DATA")
    asked, model = TextEvaluation(data, (8,), split="test"), SimpleNamespace(vocab_size=100)
    words = "examples of t in the split 'test' have no reference answers(.|\n)*the validation split"
    with pytest.raises(UserError, match=words):
        asked.check_task(task, model)
    asked.check_task(dataclasses.replace(task, examples=examples[:1]), model)
    TextEvaluation(DATA, (8,)).check_task(task, model)


def test_a_setting_that_adds_the_loss_has_an_effect():
    """`--also` skips settings of equal identity, so that the loss would never be measured."""
    plain = TextEvaluation(DATA, (8,))
    with_loss = dataclasses.replace(plain, loss=True)
    run_model = SimpleNamespace()
    assert plain.identity(run_model) != with_loss.identity(run_model)
    assert plain.clash(run_model, with_loss) == ""
    elsewhere = dataclasses.replace(with_loss, data=TextToText("mine", 6, data_dir="ELSEWHERE"))
    assert "answers other examples that are also called" in plain.clash(run_model, elsewhere)
