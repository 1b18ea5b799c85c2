"""What the kinds of data have in common that seqio reads, tokenises and arranges during a run."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast

from fire_lm.data.base import TextSource, TrainingSource
from fire_lm.data.batches import ScoringText, TrainIterator
from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.errors import UserError

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf


class Reader(Protocol):
    """A module of `on_the_fly` that makes rows of one kind of data."""

    def check(self, data: Any, *, length: int, split: str) -> int:
        """Check the settings, the vocabulary and the metadata with which rows would be made.

        Returns:
          The number of documents or examples in the split, or 0 if it is unknown.

        Raises:
          UserError: One of them is missing or unsuitable.
          RunFailed: The metadata cannot be read.
        """

    def check_rows(self, data: Any, *, length: int, shard: seqio.ShardInfo | None) -> None:
        """Check that every part of the data yields a row; otherwise, reading would never end.

        Raises:
          UserError: A part yields no row.
          RunFailed: A file is damaged.
        """

    def documents_of(self, data: Any, shard: seqio.ShardInfo | None, documents: int) -> int:
        """Return the maximum number of documents that one shard reads in an epoch.

        `documents` is the number in the split, as `check` returns it.
        """

    def groups(
        self,
        data: Any,
        *,
        length: int,
        split: str,
        seed: int | None,
        shard: seqio.ShardInfo | None = None,
        byte_counts: bool = False,
    ) -> tf.data.Dataset:
        """Return groups of rows in the format that `on_the_fly.preprocessors` describes.

        With a seed, the files are shuffled and read endlessly. Without a seed, the files are read
        once and in order.
        """

    def files(self, data: Any, split: str) -> list[list[str]]:
        """Return the files of each data set; Python functions that generate text have none."""


class BySeqio(TrainingSource):
    """Data that `on_the_fly.pipeline` reads; a subclass defines how its rows are made.

    Functions that need TensorFlow import it when they are called, which takes 10 s.
    """

    vocabulary: str
    shuffle_buffer: int
    use_instead: ClassVar[str] = (  # of a vocabulary with which rows cannot be made on the fly
        "write blocks with it (`fire-lm corpus blocks`), and read them with "
        "--gin_file=configs/data/blocks.gin"
    )

    def __post_init__(self) -> None:
        if self.shuffle_buffer < 1:
            kind = type(self).__name__
            raise UserError(f"{kind}.shuffle_buffer must be at least 1, not {self.shuffle_buffer}")

    def train_iterator(self, **arguments: int) -> TrainIterator:
        # TensorFlow would call Python code to tokenise, so the position could not be saved.
        if self.vocabulary.startswith(PREFIX):
            raise UserError(
                f"the vocabulary {self.vocabulary} cannot be used for training on the fly\n"
                f"{self.use_instead}"
            )
        from fire_lm.data.on_the_fly import pipeline

        return pipeline.SeqioIterator(self, **arguments)

    def for_a_look(self, rows: int) -> tuple[Self, int]:
        """Return data with a smaller buffer: more rows of an endless stream show no more errors."""
        rows = max(1, min(self.shuffle_buffer, rows))
        smaller: Any = dataclasses.replace(cast(Any, self), shuffle_buffer=rows)
        return smaller, rows

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """A description of the data and its location for use in messages."""

    @property
    @abc.abstractmethod
    def construction(self) -> str:
        """How documents or examples become rows."""

    @property
    def saved_construction(self) -> str:
        """The construction as saved positions contain it; a change would invalidate them."""
        return self.construction

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the arrays in a group of rows that become part of a batch."""
        return ("targets", "segment_ids") if self.packed else ("targets",)

    @property
    @abc.abstractmethod
    def reader(self) -> Reader:
        """The module of `on_the_fly` that makes the rows."""

    def described(self, documents: int) -> str:
        """Return a description of the data, of which the split has this number of documents.

        The number is 0 if it is unknown.
        """
        count = f"{documents:,} documents" if documents else f"documents of {self.title}"
        return f"{count} through seqio"

    def digests(self) -> dict[str, str]:
        """Return what a saved position contains to identify the data, besides its settings."""
        return {}


class TextBySeqio(BySeqio, TextSource):
    """Text that seqio reads."""

    def scoring_text(self, **arguments: Any) -> ScoringText:
        from fire_lm.data.on_the_fly import pipeline

        return pipeline.scoring_text(self, **arguments)


class Registered(BySeqio):
    """The examples of a Task or Mixture that is registered with seqio."""

    name: str
    use_cached: bool
    cache_dirs: tuple[str, ...]
    ignores_features: ClassVar[bool] = False
    """Whether the task may have features other than `token_features`."""
    use_instead: ClassVar[str] = "use a task with a SentencePiece or byte vocabulary"
    feature_hint: ClassVar[str] = ""
    """What the message about a missing feature ends with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        if self.cache_dirs and not self.use_cached:
            raise UserError(f"{kind}.cache_dirs has no effect without {kind}.use_cached=True")

    @property
    def title(self) -> str:
        return self.name

    @property
    def where(self) -> str:
        return f"the registered {self.name}"

    @functools.cached_property
    def provider(self) -> seqio.Task | seqio.Mixture:
        """The Task or Mixture; UserError if there is none, or if its data is missing."""
        from fire_lm.data.on_the_fly import registered

        return registered.named(self.name)

    @property
    @abc.abstractmethod
    def token_features(self) -> tuple[str, ...]:
        """The features of the task that become tokens of a row."""

    def vocabulary_size(self) -> int:
        """Return the number of ids; the vocabulary of the task may have extra ids."""
        from fire_lm.data.on_the_fly import registered

        return registered.vocabulary_size(self)
