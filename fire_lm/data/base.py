"""What a kind of data is: rows to train on, and text that can be scored as well."""

from __future__ import annotations

import abc
from typing import Protocol, Self

from fire_lm.data.batches import ScoringText, TrainIterator
from fire_lm.data.identity import vocabulary_fingerprint


class Tokenized(Protocol):
    """Data whose tokens represent text.

    `vocabulary` is 'bytes', the path of a SentencePiece model, or hf:FOLDER (see `TextData`).
    """

    @property
    def vocabulary(self) -> str: ...
    def vocabulary_identity(self) -> str | None: ...


class TrainingSource(abc.ABC):
    """What a run trains on, the value of `pretrain.data`.

    A kind of data is a frozen dataclass that derives from this class and defines the two abstract
    methods. Everything else has a default. Its `repr` identifies the data, and its class variable
    `paths` names the fields that are paths (see `fire_lm.runs.inputs`).
    """

    vocabulary: str | None = None
    """The vocabulary, as in `TextData`, or None if the tokens represent no text."""
    packed: bool = False
    """Whether a row may contain several documents, which `segment_ids` distinguishes."""
    unshifted: bool = False
    """Whether batches have `inputs`, which need not be the targets shifted by one."""
    both_directions: bool = False
    """Whether the inputs hide the targets from a model that sees later tokens (an encoder)."""
    exercises: bool = False
    """Whether the rows are exercises whose answers `fire-lm evaluate` scores by length."""
    fixed_batch: bool = False
    """Whether a saved position fits only batches of the same size."""
    any_hosts: bool = False
    """Whether any number of hosts can resume from a saved position, with the same batches."""
    divisible: bool = False
    """Whether a row may be cut into shorter rows, as length schedules do."""

    @abc.abstractmethod
    def train_iterator(
        self, *, length: int, batch_size: int, seed: int, shard_index: int, shard_count: int
    ) -> TrainIterator:
        """Return the batches of one shard; see `fire_lm.data.train_iterator`."""

    @abc.abstractmethod
    def vocabulary_size(self) -> int:
        """Return the number of ids that rows may contain, including padding.

        Raises:
          UserError: The vocabulary is missing or unsuitable.
        """

    @property
    def title(self) -> str:
        """The name of the data for use in messages."""
        return type(self).__name__

    @property
    def in_words(self) -> str:
        """The data and how it becomes rows, for reports."""
        return self.title

    @property
    def mask_id(self) -> int | None:
        """The id of the token that hides tokens from a masked language model, or None."""
        return None

    @property
    def not_text(self) -> str:
        """The reason why there is no text to score, after "was trained on", or "" if there is."""
        return f"{self.title}, which has no text to score"

    def row_lengths(self, length: int) -> tuple[int, ...]:
        """Return the numbers of tokens that the rows of a batch can have, in increasing order.

        `length` is the maximum. The training step is compiled for each of these lengths.
        """
        return (length,)

    def vocabulary_name(self) -> str:
        """Return the name of the vocabulary for use in messages."""
        return self.vocabulary or self.title

    def vocabulary_identity(self) -> str | None:
        """Return the SHA-256 of the vocabulary, 'bytes', or None if it is unknown.

        Raises:
          UserError: The vocabulary file is missing.
          RunFailed: The vocabulary cannot be read.
        """
        return vocabulary_fingerprint(self.vocabulary) if self.vocabulary else None

    def unknown_share(self, split: str) -> float:
        """Return the share of the tokens of a split that are unknown to the vocabulary.

        Most kinds count only the tokens at the beginning of the split.

        Raises:
          UserError: See `fire_lm.data.train_iterator`.
        """
        return 0.0

    def text_name(self) -> str:
        """Return the name of the text where the settings may not tell two texts apart, or ""."""
        return ""

    def for_a_look(self, rows: int) -> tuple[Self, int]:
        """Return data and a number of rows whose first batch shows the errors of `rows` rows."""
        return self, rows

    def note(self, length: int) -> str:
        """Return what a run of rows of `length` tokens prints about the data before it starts."""
        return ""


def not_text_of_task(title: str) -> str:
    """Return the reason why a task has no text to score; see `TrainingSource.not_text`."""
    return f"the task {title}, not on text: use `fire-lm evaluate` to score its answers"


class TextSource(TrainingSource):
    """Text, which a sweep can score: the value of `length_sweep.data`."""

    vocabulary: str
    divisible = True

    @abc.abstractmethod
    def scoring_text(self, *, length: int, num_sequences: int, split: str) -> ScoringText:
        """Return rows of a split to score; see `fire_lm.data.scoring_text`."""

    @property
    def not_text(self) -> str:
        return ""

    @property
    def construction(self) -> str:
        """How documents become rows, which every result records."""
        return ""

    @property
    def packed(self) -> bool:  # type: ignore[override]
        return self.construction == "packed"

    @property
    def parts(self) -> tuple[Self, ...]:
        """The texts that are scored separately."""
        return (self,)

    def label(self) -> str:
        """Return the name of the text in results, such as 'embedded', 'c4' or a task's name."""
        return self.title

    def known_label(self) -> str:
        """Return the name of the text in results, or "" if it is gone or cannot be read."""
        return self.label()

    def text_name(self) -> str:
        """Return the names of the parts, or "" if one is unknown; the text may have been moved."""
        names = [part.known_label() for part in self.parts]
        return " + ".join(names) if all(names) else ""

    def quick_splits(self) -> list[str] | None:
        """Return the names of the splits, or None if they cannot be read quickly."""
        return None

    @property
    def in_words(self) -> str:
        unknown = "unknown text (gone, or not readable from here)"
        names = dict.fromkeys(part.known_label() or unknown for part in self.parts)
        return f"{' + '.join(names)}, {self.construction}".rstrip(", ")
