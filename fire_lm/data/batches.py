"""Batches read from a source of data: an iterator for training, and rows of text to score."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from fire_lm.errors import UserError


class NoText(UserError):
    """The error for a split that does not contain a single row of the requested length."""


def text_weights(targets: np.ndarray) -> np.ndarray:
    """Return the int8 weights of targets, in the shape of `targets`: 0 for padding, otherwise 1."""
    return (targets != 0).astype(np.int8)


def share_unknown(targets: np.ndarray, unknown_id: int | None) -> float:
    """Return the share of unknown tokens among the non-padding tokens of `targets`.

    `targets` is an integer array of any shape in which 0 is padding.
    """
    if unknown_id is None:
        return 0.0
    return float(np.sum(targets == unknown_id)) / max(1, int(np.count_nonzero(targets)))


class TrainIterator(Protocol):
    """An endless iterator over one shard's training batches; see `fire_lm.data.train_iterator`.

    Attributes:
        shared_state: Whether the saved position is identical on all shards.
        skipped: The number of unusable documents or examples that were skipped since the previous
            batch.
        on_rows: A callback that receives the number of rows read so far and the number of rows that
            must be read before the first batch.
    """

    shared_state: bool
    skipped: int
    on_rows: Callable[[int, int], None]

    @property
    def description(self) -> str: ...
    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...
    def __next__(self) -> dict[str, np.ndarray]: ...
    def get_state(self) -> bytes: ...
    def set_state(self, state: bytes) -> None: ...


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
