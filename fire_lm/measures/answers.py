"""A model's answers to the examples of a task, generated or ranked, and the loss of its targets."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh

from fire_lm.data import tokens as vocabulary
from fire_lm.data.task_examples import Example
from fire_lm.data.truncation import shortened
from fire_lm.errors import RunFailed, UserError
from fire_lm.generation.continuations import Writer, width
from fire_lm.measures.continuation_scores import Row, continuation_scores, padded_width
from fire_lm.measures.predictions import Prediction
from fire_lm.models import Decoder, reason_of_nan
from fire_lm.results.estimators import mean_and_error
from fire_lm.tasks.metrics import Score

if TYPE_CHECKING:
    from fire_lm.measures.task_scores import TextEvaluation

_Batch = list[tuple[Example, str, float]]


def prompt(data: Any, example: Example, length: int) -> np.ndarray:
    """Return the model's input for an example as int32 ids.

    The ids are token 0, the example's input and the end token. The input is truncated so that it
    has at most `length` tokens, including the end token.
    """
    kept = shortened(example.tokens, length - 1, data.truncation)
    return np.concatenate([[0], kept, [vocabulary.end_of_document(data)]]).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Answering:
    """A model that answers examples with the settings in `asked`.

    `train_length` is the length of the rows on which the model was trained.
    """

    asked: TextEvaluation
    model: Decoder
    params: Any
    mesh: Mesh
    train_length: int

    def answers(
        self, examples: Sequence[Example], length: int, done: Callable[[int], None]
    ) -> Iterator[list[Prediction]]:
        """Yield the predictions batch by batch.

        Args:
          examples: The examples to answer.
          length: The maximum number of tokens of an input, including its end token.
          done: A callback that receives the number of examples answered so far.
        """
        answer = self._ranked if self.asked.rank else self._generated
        count = 0
        for batch in answer(examples, length):
            count += len(batch)
            done(count)
            yield [
                Prediction(
                    example.id,
                    text,
                    example.answers,
                    example.input_length > length - 1,
                    example.input_length,
                    logprob,
                )
                for example, text, logprob in batch
            ]

    def target_loss(self, examples: Sequence[Example], length: int) -> Score:
        """Return the mean loss of the targets, in nats per token, with its standard error.

        Each target follows its input, of which the model reads at most `length` tokens, and ends
        with the end token. As in training, targets longer than the target length do not count.

        Raises:
          RunFailed: The model returns NaN.
          UserError: No target has a suitable length.
        """
        data = self.asked.data
        end = vocabulary.end_of_document(data)
        targets = [vocabulary.encode(data, example.answers[0]) for example in examples]
        rows = [
            (prompt(data, example, length).tolist(), [*target.tolist(), end])
            for example, target in zip(examples, targets, strict=True)
            if 0 < len(target) < data.target_length
        ]
        if not rows:
            raise UserError(
                f"no target of {data.title} has 1 to {data.target_length - 1} tokens: raise "
                "TARGET_LENGTH, or set evaluate.loss = False"
            )
        nll_R = np.zeros(len(rows))
        for index, logprob, _ in continuation_scores(
            *(self.model, self.params, rows, self.mesh, self.asked.tokens_per_batch)
        ):
            self._check_number(logprob, rows[index])
            nll_R[index] = -logprob
        value, stderr = mean_and_error(nll_R, np.array([len(target) for _, target in rows]))
        return Score(value, stderr, math.nan, math.nan, len(rows))

    def _check_number(self, logprob: float, row: Row) -> None:
        """Raise RunFailed if the log-probability of a row is NaN."""
        if np.isnan(logprob):
            read = padded_width(self.model, sum(map(len, row)) - 1)
            raise RunFailed(
                f"the model returns NaN: {reason_of_nan(self.model, self.params, read)}",
                everywhere=True,  # all processes have the same arrays
            )

    def _generated(self, examples: Sequence[Example], length: int) -> Iterator[_Batch]:
        """Generate answers, starting with the shortest inputs.

        Batches of prompts with the same padded width and context length share a compiled program.
        """
        asked, data = self.asked, self.asked.data
        writer = Writer(
            *(self.model, self.params, data, data.target_length, asked.method), mesh=self.mesh
        )
        groups: dict[tuple[int, int], list[tuple[Example, np.ndarray]]] = {}
        for example in sorted(examples, key=lambda one: (len(one.tokens), one.id)):
            ids = prompt(data, example, length)
            key = width(len(ids)), self._context_length(len(ids), length)
            groups.setdefault(key, []).append((example, ids))
        for (_, context_length), alike in groups.items():
            for start in range(0, len(alike), asked.batch_size):
                batch = alike[start : start + asked.batch_size]
                filled = [*batch, *[batch[-1]] * (asked.batch_size - len(batch))]
                found = writer.continue_prompts(
                    [ids for _, ids in filled],
                    # Random keys depend only on the id of the example, not on its batch.
                    [zlib.crc32(one.id.encode()) & 0x7FFFFFFF for one, _ in filled],
                    context_length,
                )
                yield [
                    (example, one[0].text, float(sum(one[0].logprobs)))
                    for (example, _), one in zip(batch, found, strict=False)
                ]

    def _context_length(self, prompt: int, length: int) -> int:
        """Return the context length at which a prompt of `prompt` tokens is answered.

        It is the evaluation's own context length. However, encodings that depend on the length of
        the input treat a prompt that fits in the training length with its answer as in training,
        unless the model was already trained beyond the length from which they interpolate.
        """
        context = self.asked.context_length(length)
        dependent = [one for one in self.model.encodings if one.uses_context_length]
        unchanged = min((one.train_length for one in dependent), default=context)
        fits = prompt + self.asked.data.target_length <= unchanged
        return min(context, unchanged) if fits and self.train_length <= unchanged else context

    def _ranked(self, examples: Sequence[Example], length: int) -> Iterator[_Batch]:
        """Choose the most likely of the allowed answers for each example.

        The probability of an answer includes its end token. If several answers are equally likely,
        the first of them is chosen.
        """
        data = self.asked.data
        end = vocabulary.end_of_document(data)
        for start in range(0, len(examples), self.asked.batch_size):
            batch = examples[start : start + self.asked.batch_size]
            rows, owners = [], []
            for number, example in enumerate(batch):
                for choice in self.asked.choices or example.choices:
                    answer = [*vocabulary.encode(data, choice).tolist(), end]
                    rows.append((prompt(data, example, length).tolist(), answer))
                    owners.append((number, choice))
            best: dict[int, tuple[float, int, str]] = {}
            for index, logprob, _ in continuation_scores(
                *(self.model, self.params, rows, self.mesh, self.asked.tokens_per_batch)
            ):
                self._check_number(logprob, rows[index])
                number, choice = owners[index]
                best[number] = max(best.get(number, (-np.inf, 0, "")), (logprob, -index, choice))
            yield [(one, best[n][2], best[n][0]) for n, one in enumerate(batch)]
