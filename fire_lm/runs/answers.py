"""Generated answers to synthetic exercises in the layout `autoregressive`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fire_lm.evaluation.length_accuracy import Answering
from fire_lm.generation import generate
from fire_lm.models import Decoder, padded_length
from fire_lm.tasks.synthetic import Sample, Task
from fire_lm.tasks.synthetic.layouts import answers, prompt

_SMALLEST_WIDTH = 16  # the minimum width to which prompts are padded


def generated_answers(model: Decoder, params: Any, task: Task) -> Answering:
    """Return a function that answers exercises by greedy decoding.

    Each generated answer has the same number of tokens as the correct answer. The model uses its
    evaluation positions.
    """

    def answering(samples: Sequence[Sample], length: int) -> np.ndarray:
        prompts = [prompt("autoregressive", sample) for sample in samples]
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        rows = np.zeros(
            (len(prompts), padded_length(int(lengths.max()), _SMALLEST_WIDTH)), np.int32
        )
        for row, ids in zip(rows, prompts, strict=True):
            row[: len(ids)] = ids
        found = generate(model, params, rows, lengths, new_tokens=task.answer_length(length))
        return answers(task, "autoregressive", found.tokens_BKT[:, 0], length)

    return answering
