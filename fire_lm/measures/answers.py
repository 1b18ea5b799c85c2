"""Generated answers to synthetic exercises in the layout `autoregressive`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fire_lm.generation import generate
from fire_lm.measures.length_accuracy import Answering
from fire_lm.models import Decoder, depends_on_length, padded_length, readable_length
from fire_lm.tasks.synthetic import Sample, Task
from fire_lm.tasks.synthetic.layouts import answers, prompt

# The minimum numbers of tokens to which prompts and answers are padded.
_SMALLEST_WIDTH, _SMALLEST_ANSWER = 16, 2


def generated_answers(model: Decoder, params: Any, task: Task) -> Answering:
    """Return a function that answers exercises by greedy decoding.

    Each answer has the same number of tokens as the correct answer. More tokens are generated where
    that does not change the first ones, so that few programs are compiled. The model uses its
    evaluation positions.
    """

    def answering(samples: Sequence[Sample], length: int) -> np.ndarray:
        prompts = [prompt("autoregressive", sample) for sample in samples]
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        longest, size = int(lengths.max()), task.answer_length(length)
        rows = np.zeros((len(prompts), padded_length(longest, _SMALLEST_WIDTH)), np.int32)
        for row, ids in zip(rows, prompts, strict=True):
            row[: len(ids)] = ids
        exact = depends_on_length(model, longest + size)
        padded = size if exact else padded_length(size, _SMALLEST_ANSWER)
        new_tokens = readable_length(model, longest + size, longest + padded) - longest
        found = generate(model, params, rows, lengths, new_tokens=new_tokens)
        return answers(task, "autoregressive", found.tokens_BKT[:, 0], length)

    return answering
