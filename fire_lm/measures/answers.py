"""Answers to the examples of a task that a model generates."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh

from fire_lm.data import tokens as vocabulary
from fire_lm.data.task_examples import Example
from fire_lm.data.truncation import shortened
from fire_lm.generation.continuations import Writer, width
from fire_lm.measures.base import RunModel
from fire_lm.measures.predictions import Prediction

if TYPE_CHECKING:
    from fire_lm.measures.task_scores import TextEvaluation


def prompt(data: Any, example: Example, length: int) -> np.ndarray:
    """Return the model's input for an example as int32 ids.

    The ids are token 0, the example's input and the end token. The input is truncated so that it
    has at most `length` tokens, including the end token.
    """
    kept = shortened(example.tokens, length - 1, data.truncation)
    return np.concatenate([[0], kept, [vocabulary.end_of_document(data)]]).astype(np.int32)


def generated(
    settings: TextEvaluation,
    run_model: RunModel,
    params: Any,
    mesh: Mesh,
    examples: Sequence[Example],
    length: int,
) -> Iterator[list[Prediction]]:
    """Yield the answers to examples batch by batch, starting with the shortest inputs.

    Batches of prompts with the same padded width and context length share a compiled program.

    Args:
      settings: The settings of the evaluation.
      run_model: The model.
      params: The parameters of the model.
      mesh: The device mesh.
      examples: The examples to answer.
      length: The maximum number of tokens of an input, including its end token.
    """
    data, size = settings.data, settings.batch_size
    new_tokens = data.target_length
    writer = Writer(run_model.model, params, data, new_tokens, settings.method, mesh=mesh)
    groups: dict[tuple[int, int], list[tuple[Example, np.ndarray]]] = {}
    for example in sorted(examples, key=lambda example: (len(example.tokens), example.id)):
        ids = prompt(data, example, length)
        key = width(len(ids)), _context_length(settings, run_model, len(ids), length)
        groups.setdefault(key, []).append((example, ids))
    for (_, context_length), alike in groups.items():
        for start in range(0, len(alike), size):
            batch = alike[start : start + size]
            filled = [*batch, *[batch[-1]] * (size - len(batch))]
            continuations = writer.continue_prompts(
                [ids for _, ids in filled],
                # Random keys depend only on the id of the example, not on its batch.
                [zlib.crc32(example.id.encode()) & 0x7FFFFFFF for example, _ in filled],
                context_length,
            )
            yield [
                Prediction.from_answer(example, first.text, float(sum(first.logprobs)), length)
                for (example, _), (first, *_) in zip(batch, continuations, strict=False)
            ]


def _context_length(settings: TextEvaluation, run_model: RunModel, prompt: int, length: int) -> int:
    """Return the context length at which a prompt of `prompt` tokens is answered.

    It is the evaluation's own context length. However, encodings that depend on the length of the
    input treat a prompt that fits in the training length with its answer as in training, unless the
    model was already trained beyond the length from which they interpolate.
    """
    context = settings.context_length(length)
    dependent = [one for one in run_model.model.encodings if one.uses_context_length]
    unchanged = min((encoding.train_length for encoding in dependent), default=context)
    fits = prompt + settings.data.target_length <= unchanged
    return min(context, unchanged) if fits and run_model.train_length <= unchanged else context
