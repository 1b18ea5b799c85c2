"""Text for masked language models: tokens are hidden, and the model predicts what they were.

Source: Devlin et al. (2019), BERT: 15 % of the tokens are chosen; of these, 80 % are replaced by a
mask token, 10 % by a random token, and 10 % are kept. Only chosen tokens have a loss. As in RoBERTa
(Liu et al., 2019), the choice is drawn anew each time that a row is read.

Shapes: T tokens of a row.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fire_lm.data.base import TextSource, TrainingSource
from fire_lm.data.batches import Batch, TrainIterator
from fire_lm.errors import UserError

USUAL_RATE = 0.15

# The fate of a chosen token: below the first share it is masked, below the second it is random.
_MASKED, _RANDOM = 0.8, 0.9


class Masked(NamedTuple):
    """A row as a masked language model reads it.

    Attributes:
      inputs: The tokens that the model reads, int32 `[T]`.
      chosen: The weights of the targets, int8 `[T]`: 1 for tokens to predict.
    """

    inputs: np.ndarray
    chosen: np.ndarray


def masked(
    targets: np.ndarray, weights: np.ndarray, rng: np.random.Generator, rate: float, mask_id: int
) -> Masked:
    """Choose tokens of a row to predict, and hide most of them.

    Args:
      targets: The tokens, int32 `[T]`; random tokens are drawn from 1 .. `mask_id` - 1.
      weights: 0 for tokens that are never chosen, such as padding, `[T]`.
      rng: The source of the draws. The draws for a token depend only on its place in the row.
      rate: The share of tokens to choose.
      mask_id: The id of the mask token.
    """
    draw_3T = rng.random((len(targets), 3)).T
    chosen = (draw_3T[0] < rate) & (weights > 0)
    random = 1 + np.floor(draw_3T[2] * (mask_id - 1)).astype(np.int32)
    hidden = np.where(
        draw_3T[1] < _MASKED, mask_id, np.where(draw_3T[1] < _RANDOM, random, targets)
    )
    return Masked(np.where(chosen, hidden, targets).astype(np.int32), chosen.astype(np.int8))


@dataclasses.dataclass(frozen=True)
class MaskedText(TrainingSource):
    """Rows of a text with hidden tokens, which the model predicts; configured by gin.

    The mask token is one more id, after those of the vocabulary, so VOCAB_SIZE must exceed the
    number of ids of the vocabulary. Which tokens are hidden depends only on the run's seed and on
    how many rows precede.

    Attributes:
      text: The text and the way its documents become rows.
      rate: The share of tokens to predict.
    """

    text: TextSource
    rate: float = USUAL_RATE
    unshifted = both_directions = True
    vocabulary = property(lambda self: self.text.vocabulary)
    title = property(lambda self: self.text.title)
    packed = property(lambda self: self.text.packed)
    any_hosts = property(lambda self: self.text.any_hosts)
    fixed_batch = property(lambda self: self.text.fixed_batch)
    divisible = property(lambda self: self.text.divisible)

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"MaskedText.rate is {self.rate}: it must be between 0 and 1")

    @property
    def in_words(self) -> str:
        return f"{self.text.in_words}, {self.rate:.0%} masked"

    @property
    def not_text(self) -> str:
        return (
            f"masked text of {self.title}, which has no next-token loss: use `fire-lm evaluate "
            "--measure=fire_lm.measures.masked_accuracy.MaskedAccuracy`"
        )

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        return self.text.vocabulary_size()

    def train_iterator(self, **arguments: int) -> TrainIterator:
        rows = self.text.train_iterator(**arguments)
        seed, batch_size = arguments["seed"], arguments["batch_size"]
        mask_id, first = self.mask_id, arguments["shard_index"] * batch_size

        def hide(batch: Batch, rows_before: int) -> Batch:
            hidden = [
                masked(targets, weights, _generator(seed, row), self.rate, mask_id)
                for row, (targets, weights) in enumerate(
                    zip(batch["targets"], batch["weights"], strict=True), rows_before + first
                )
            ]
            inputs, weights = (np.stack(arrays) for arrays in zip(*hidden, strict=True))
            tokens = np.count_nonzero(batch["weights"], axis=1, keepdims=True).astype(np.int32)
            return {**batch, "inputs": inputs, "weights": weights, "tokens": tokens}

        return _MaskedRows(rows, hide, batch_size * arguments["shard_count"])

    def vocabulary_size(self) -> int:
        return self.mask_id + 1

    def vocabulary_name(self) -> str:
        return f"{self.text.vocabulary_name()} with a mask token"

    def vocabulary_identity(self) -> str | None:
        return self.text.vocabulary_identity()

    def row_lengths(self, length: int) -> tuple[int, ...]:
        return self.text.row_lengths(length)

    def unknown_share(self, split: str) -> float:
        return self.text.unknown_share(split)

    def text_name(self) -> str:
        return self.text.text_name()

    def for_a_look(self, rows: int) -> tuple[MaskedText, int]:
        text, rows = self.text.for_a_look(rows)
        return dataclasses.replace(self, text=text), rows

    def note(self, length: int) -> str:
        return self.text.note(length)


def _generator(seed: int, row: int) -> np.random.Generator:
    """Return the source of the draws for a row; `row` is its number among the rows of a run."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, row], np.uint64)))


class _MaskedRows(TrainIterator):
    """The batches of a text with hidden tokens, and the number of rows that precede them."""

    def __init__(self, rows: TrainIterator, hide: Callable[[Batch, int], Batch], global_size: int):
        self._rows, self._hide, self._global_size = rows, hide, global_size
        self._rows_before = 0
        self.shared_state = rows.shared_state

    @property
    def on_rows(self) -> Callable[[int, int], None]:  # type: ignore[override]
        return self._rows.on_rows

    @on_rows.setter
    def on_rows(self, on_rows: Callable[[int, int], None]) -> None:
        self._rows.on_rows = on_rows

    @property
    def description(self) -> str:
        return f"{self._rows.description}, with masked tokens"

    def __next__(self) -> Batch:
        batch = self._hide(next(self._rows), self._rows_before)
        self._rows_before += self._global_size
        self.skipped = self._rows.skipped
        return batch

    def is_after(self, batches: int) -> bool:
        same = self._rows_before == batches * self._global_size
        return same and self._rows.is_after(batches)

    def get_state(self) -> bytes:
        rows = base64.b64encode(self._rows.get_state()).decode()
        return json.dumps({"masked rows": self._rows_before, "of": rows}).encode()

    def set_state(self, state: bytes) -> None:
        try:
            saved = json.loads(state)
            rows_before, rows = int(saved["masked rows"]), base64.b64decode(saved["of"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "The saved data position does not belong to masked text.\n"
                "Resume with the data with which the run was started"
            ) from error
        self._rows.set_state(rows)
        self._rows_before = rows_before
