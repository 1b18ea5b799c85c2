"""Answers to the examples of a task that a model generates."""

from __future__ import annotations

import dataclasses
import hashlib
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


def input_digest(settings: TextEvaluation, example: Example, length: int) -> str:
    """Return a digest of the model's input for an example, and of the answers that it ranks."""
    read = hashlib.sha256(prompt(settings.data, example, length).astype("<i4").tobytes())
    if settings.rank:
        read.update(repr(list(settings.choices or example.choices)).encode(errors="replace"))
    return read.hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Answerer:
    """A model that answers examples, whose inputs have at most `length` tokens with the end token.

    Attributes:
      settings: The settings of the evaluation.
      run_model: The model.
      params: The parameters of the model.
      mesh: The device mesh.
      length: The maximum number of tokens of an input.
    """

    settings: TextEvaluation
    run_model: RunModel
    params: Any
    mesh: Mesh
    length: int

    def prediction(self, example: Example, text: str, logprob: float) -> Prediction:
        """Return the prediction for an example that the model has answered."""
        digest = input_digest(self.settings, example, self.length)
        return Prediction.from_answer(example, text, logprob, self.length, digest)

    def context_length(self, tokens: int) -> int:
        """Return the context length at which a prompt of `tokens` tokens is answered.

        It is the evaluation's own context length. However, encodings that depend on the length of
        the input treat a prompt that fits in the training length with its answer as in training,
        unless the model was already trained beyond the length from which they interpolate.
        """
        context = self.settings.context_length(self.length)
        dependent = [
            encoding for encoding in self.run_model.model.encodings if encoding.uses_context_length
        ]
        unchanged = min((encoding.train_length for encoding in dependent), default=context)
        fits = tokens + self.settings.data.target_length <= unchanged
        as_trained = fits and self.run_model.train_length <= unchanged
        return min(context, unchanged) if as_trained else context


def generated(answerer: Answerer, examples: Sequence[Example]) -> Iterator[list[Prediction]]:
    """Yield the answers to examples batch by batch, starting with the shortest inputs.

    Batches of prompts with the same padded width and context length share a compiled program.
    """
    settings, length = answerer.settings, answerer.length
    data, size = settings.data, settings.batch_size
    new_tokens = data.target_length
    model, params = answerer.run_model.model, answerer.params
    writer = Writer(model, params, data, new_tokens, settings.method, mesh=answerer.mesh)
    groups: dict[tuple[int, int], list[tuple[Example, np.ndarray]]] = {}
    for example in sorted(examples, key=lambda example: (len(example.tokens), example.id)):
        ids = prompt(data, example, length)
        key = width(len(ids)), answerer.context_length(len(ids))
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
                answerer.prediction(example, first.text, float(sum(first.logprobs)))
                for (example, _), (first, *_) in zip(batch, continuations, strict=False)
            ]
