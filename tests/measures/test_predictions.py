"""The batches in which a run's model answers the examples of a task."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fire_lm.data import TextToText
from fire_lm.data.task_examples import Example
from fire_lm.measures import answers
from fire_lm.measures.answers import Answerer, generated
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.positions.alibi import ALiBi

TRAIN_LENGTH, TARGET_LENGTH = 300, 10


def batches(monkeypatch, encoding, length, examples, train_length=TRAIN_LENGTH):
    """Return the prompts' lengths and the context length of each batch, and the answered ids."""
    found = []

    def continue_prompts(prompts, numbers, context_length):
        found.append(([len(ids) for ids in prompts], context_length))
        return [[SimpleNamespace(text="a", logprobs=[0.0])] for _ in prompts]

    writer = SimpleNamespace(continue_prompts=continue_prompts)
    monkeypatch.setattr(answers, "Writer", lambda *_, **__: writer)
    settings = TextEvaluation(TextToText("mine", TARGET_LENGTH), (length,), batch_size=2)
    run_model: Any = SimpleNamespace(
        model=SimpleNamespace(encodings=(encoding,)), train_length=train_length
    )
    mesh: Any = None
    answerer = Answerer(settings, run_model, None, mesh, length)
    answered = generated(answerer, examples)
    return found, [one.id for batch in answered for one in batch]


@pytest.mark.parametrize("interpolate", [False, True])
def test_inputs_up_to_the_training_length_are_not_interpolated(monkeypatch, interpolate):
    """2310.13017, section 2.1: slopes change only for inputs beyond the training length.

    The prompts of 256 to 384 tokens share a width; the first two fit in 300 tokens with an answer.
    """
    examples = [
        Example(f"{n}", np.full(n, 7), n, ("a",), (), "a", {}) for n in (360, 20, 288, 289, 500)
    ]
    encoding = ALiBi(2, 8, TRAIN_LENGTH, 16, interpolate=interpolate)
    found, ids = batches(monkeypatch, encoding, 400, examples)
    assert ids == ["20", "288", "289", "360", "500"]
    short = TRAIN_LENGTH if interpolate else 411
    expected = [([22, 22], short), ([290, 290], short), ([291, 362], 411), ([401, 401], 411)]
    if not interpolate:
        expected[1:3] = [([290, 291], 411), ([362, 362], 411)]
    assert found == expected
    # If all inputs fit with their answers, the context length is theirs.
    found, _ = batches(monkeypatch, encoding, 100, examples)
    assert {context for _, context in found} == {111}


def test_a_model_that_was_trained_with_interpolation_answers_as_in_training(monkeypatch):
    """All rows of such a run were interpolated, also those of short inputs."""
    examples = [Example("20", np.full(20, 7), 20, ("a",), (), "a", {})]
    encoding = ALiBi(2, 8, TRAIN_LENGTH, 16, interpolate=True)
    found, _ = batches(monkeypatch, encoding, 400, examples, train_length=4 * TRAIN_LENGTH)
    assert found == [([22, 22], 411)]
