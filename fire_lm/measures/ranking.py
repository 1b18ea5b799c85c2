"""The likelihoods of given answers to the examples of a task: the likeliest one, and the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fire_lm.data import tokens as vocabulary
from fire_lm.data.task_examples import Example
from fire_lm.errors import UserError
from fire_lm.measures.answers import Answerer, prompt
from fire_lm.measures.continuation_scores import Row, continuation_scores
from fire_lm.measures.predictions import Prediction
from fire_lm.results.estimators import mean_and_error
from fire_lm.tasks.metrics import Score


def ranked(answerer: Answerer, examples: Sequence[Example]) -> Iterator[list[Prediction]]:
    """Yield the most likely of the allowed answers to each example, batch by batch.

    The probability of an answer includes its end token. If several answers are equally likely, the
    first of them is chosen.
    """
    settings, length = answerer.settings, answerer.length
    for start in range(0, len(examples), settings.batch_size):
        batch = examples[start : start + settings.batch_size]
        choices = [settings.choices or example.choices for example in batch]
        rows = [
            _row(settings.data, example, vocabulary.encode(settings.data, choice), length)
            for example, allowed in zip(batch, choices, strict=True)
            for choice in allowed
        ]
        scores = iter(_log_likelihoods(answerer, rows))
        predictions = []
        for example, allowed in zip(batch, choices, strict=True):
            likelihoods = {choice: float(next(scores)) for choice in allowed}
            likeliest = max(likelihoods, key=likelihoods.__getitem__)
            logprob = likelihoods[likeliest]
            predictions.append(answerer.prediction(example, likeliest, logprob))
        yield predictions


def target_loss(answerer: Answerer, examples: Sequence[Example]) -> Score:
    """Return the mean loss of the targets, in nats per token, with its standard error.

    Each target follows its input and ends with the end token. As in training, targets longer than
    the target length do not count.

    Raises:
      RunFailed: The model returns NaN.
      UserError: No target has a suitable length.
    """
    data, length = answerer.settings.data, answerer.length
    targets = [vocabulary.encode(data, example.answers[0]) for example in examples]
    rows = [
        _row(data, example, target, length)
        for example, target in zip(examples, targets, strict=True)
        if 0 < len(target) < data.target_length
    ]
    if not rows:
        raise UserError(
            f"no target of {data.title} has 1 to {data.target_length - 1} tokens: raise "
            "TARGET_LENGTH, or set evaluate.loss = False"
        )
    nll_R = -_log_likelihoods(answerer, rows)
    value, stderr = mean_and_error(nll_R, np.array([len(target) for _, target in rows]))
    return Score(value, stderr, math.nan, math.nan, len(rows))


def _row(data: Any, example: Example, answer: np.ndarray, length: int) -> Row:
    """Return the prompt of an example, and an answer with its end token."""
    end = vocabulary.end_of_document(data)
    return prompt(data, example, length).tolist(), [*answer.tolist(), end]


def _log_likelihoods(answerer: Answerer, rows: Sequence[Row]) -> np.ndarray:
    """Return the log-probability of each row's answer after its prompt, in nats, `[R]`."""
    logprob_R, model = np.zeros(len(rows)), answerer.run_model.model
    most = answerer.settings.tokens_per_batch
    scores = continuation_scores(model, answerer.params, rows, answerer.mesh, most)
    for index, logprob, _ in scores:
        logprob_R[index] = logprob
    return logprob_R
