"""Batches read from a source of data: an iterator for training, and rows of text to score."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from fire_lm.errors import UserError

Batch = dict[str, np.ndarray]


class NoText(UserError):
    """The error for a split that does not contain a single row of the requested length."""


def text_weights(targets: np.ndarray) -> np.ndarray:
    """Return the int8 weights of targets, in the shape of `targets`: 0 for padding, otherwise 1."""
    return (targets != 0).astype(np.int8)


def cut(batch: Batch, length: int) -> Batch:
    """Cut each row of a batch into consecutive rows of `length` tokens, which must divide it.

    `tokens` int32 `[B, 1]`, the number of tokens of a row before its padding, becomes that of each
    part, but at least 1. A document that a cut divides continues in the next row, as another one.
    """
    before = batch["targets"].shape[1]
    if before == length:
        return batch
    parts = {name: rows.reshape(-1, length) for name, rows in batch.items() if name != "tokens"}
    if (tokens := batch.get("tokens")) is not None:
        left = tokens - np.arange(0, before, length, dtype=tokens.dtype)
        parts["tokens"] = np.clip(left, 1, length).reshape(-1, 1)
    return parts


def share_unknown(targets: np.ndarray, unknown_id: int | None) -> float:
    """Return the share of unknown tokens among the non-padding tokens of `targets`.

    `targets` is an integer array of any shape in which 0 is padding.
    """
    if unknown_id is None:
        return 0.0
    return float(np.sum(targets == unknown_id)) / max(1, int(np.count_nonzero(targets)))


class TrainIterator(abc.ABC):
    """An endless iterator over one shard's training batches; see `fire_lm.data.train_iterator`.

    Attributes:
      shared_state: Whether the saved position is identical on all shards.
      skipped: The number of unusable documents or examples that were skipped since the previous
        batch.
      on_rows: A callback that receives the number of rows read so far and the number of rows that
        must be read before the first batch.
    """

    shared_state: bool = False
    skipped: int = 0
    on_rows: Callable[[int, int], None]

    @property
    def description(self) -> str:
        """A description of the rows for use in messages."""
        return type(self).__name__

    def __iter__(self) -> Self:
        return self

    @abc.abstractmethod
    def __next__(self) -> Batch:
        """Return the next batch."""

    @abc.abstractmethod
    def get_state(self) -> bytes:
        """Return the position after the last returned batch."""

    def is_after(self, batches: int) -> bool:
        """Return whether the position is that after so many batches, even if a read has failed."""
        return False

    @abc.abstractmethod
    def set_state(self, state: bytes) -> None:
        """Continue after the last batch that had been returned when `state` was saved.

        Raises:
          UserError: The state belongs to other data, or is unreadable.
        """


class CountingIterator(TrainIterator):
    """An iterator whose batches depend only on how many precede them, on any number of shards.

    The position is therefore a single number, which all shards share.

    Attributes:
      identity: What a saved position must agree on, keyed by words for messages.
      number: The number of the next batch.
    """

    shared_state = True
    of = "such data"  # the kind of data, for messages
    counted = "step"  # the name of `number` in a saved position

    def __init__(self, identity: Mapping[str, object]):
        self.identity = dict(identity)
        self.number = 0

    @abc.abstractmethod
    def batch(self, number: int) -> Batch:
        """Return this shard's rows of a batch."""

    def __next__(self) -> Batch:
        batch = self.batch(self.number)
        self.number += 1
        return batch

    def is_after(self, batches: int) -> bool:
        return self.number == batches

    def get_state(self) -> bytes:
        return json.dumps({self.counted: self.number, **self.identity}).encode()

    def set_state(self, state: bytes) -> None:
        try:
            saved = json.loads(state)
            number = int(saved.pop(self.counted))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"The saved data position is damaged, or does not belong to {self.of}\n"
                "Resume with the data with which the run was started"
            ) from error
        for key, now in self.identity.items():
            if saved.get(key) != now:
                *most, last = self.identity
                raise UserError(
                    f"The data position was saved with {key} {saved.get(key)}, but the run now has "
                    f"{now}\n"
                    f"Training can only resume with the same {', '.join(most)} and {last}"
                )
        self.number = number


@dataclasses.dataclass(frozen=True)
class ScoringText:
    """A fixed set of n rows of text to score.

    Attributes:
      targets: The tokens, int32 [n, length]; 0 is padding, which is never scored.
      byte_counts: The number of bytes of the original text (of the normalised text for a
        `SeqioTask`) that each target represents, int32 [n, length]; 0 for the end of a document
        and for padding.
      skipped: The number of documents that were skipped during reading because they were empty,
        undecodable or huge.
      unknown: The share of the scored tokens that are unknown to the vocabulary.
      segment_ids: The segment ids of packed rows, int32 [n, length], as in training; None if the
        rows are not packed.
    """

    targets: np.ndarray
    byte_counts: np.ndarray
    skipped: int
    unknown: float = 0.0
    segment_ids: np.ndarray | None = None

    @property
    def weights(self) -> np.ndarray:
        """The weight of each target, int8 [n, length]: 0 for padding, otherwise 1."""
        return text_weights(self.targets)
