"""What text to read and what a read gives back: plain dataclasses.

TensorFlow is imported by the methods that need it, and only once they are called (10 s).
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from fire_lm.errors import UserError
from fire_lm.storage import in_bucket, read_bytes

if TYPE_CHECKING:
    from fire_lm.data.pipeline import TrainIterator

# Longer ones are left out: SentencePiece needs up to 230 bytes of memory for each byte (measured).
LONGEST_DOCUMENT = 2**24  # bytes
# Rows read for each row scored: taken evenly from them, so that a few rows of a small set do not
# all come from one or two documents.
SCORING_SPREAD = 8

Construction = Literal["concat", "cut", "packed", "long_documents"]
CONSTRUCTIONS: tuple[Construction, ...] = get_args(Construction)
# Above this share of unknown tokens a loss says little about the text.
UNKNOWN_SHARE = 0.01
# What a batch holds, int32 [rows, length] each, where it is more than the tokens.
_FEATURES = {"packed": ("targets", "segment_ids")}


@dataclasses.dataclass(frozen=True)
class TextData:
    """Where the text is and how documents become rows; gin fills the fields.

    Attributes:
        data_dir: TFDS data directory, local or gs://.
        tfds_name: TFDS name with config and version; any set with a `text` feature.
        vocabulary: 'bytes' (seqio.ByteVocabulary: padding 0, end of document 1, unknown 2, byte b
            is id b + 3), or the path of a SentencePiece model, local or gs://.
        construction: how documents, each with its end-of-document token, become rows of n tokens.
            'concat' joins them and chops the stream into full rows; 'cut' splits each into rows
            of its own, the last one padded; 'packed' lays these parts into rows side by side
            (next-fit), each a segment with positions and attention of its own; 'long_documents'
            takes the first n tokens of those that have n.
        shuffle_buffer: rows that are shuffled together, per shard. The saved position does not
            grow with it; the time to the first batch does.
        mixture: instead of `tfds_name`, data sets of `data_dir` and the rates at which their rows
            are drawn: (('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1)) gives arXiv a quarter of the rows.
            For training; a sweep scores each data set by itself.
    """

    data_dir: str
    tfds_name: str = "c4/en:3.1.0"
    vocabulary: str = "bytes"
    construction: Construction = "concat"
    shuffle_buffer: int = 1000
    mixture: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuses what no machine could read, wherever it is first asked for."""
        if self.shuffle_buffer < 1:
            raise UserError(f"TextData.shuffle_buffer is at least 1, not {self.shuffle_buffer}.")
        for name, rate in self.mixture:
            if not 0 < rate < math.inf:
                raise UserError(f"TextData.mixture: the rate of {name} is {rate}, not above 0.")
            if [other for other, _ in self.mixture].count(name) > 1:
                raise UserError(f"TextData.mixture names {name} twice: give it one rate.")

    @property
    def features(self) -> tuple[str, ...]:
        """The arrays of a batch: `targets`, and `segment_ids` where rows are packed."""
        return _FEATURES.get(self.construction, ("targets",))

    @property
    def parts(self) -> tuple[TextData, ...]:
        """The data sets of the mixture, or this one."""
        if not self.mixture:
            return (self,)
        return tuple(
            dataclasses.replace(self, tfds_name=name, mixture=()) for name, _ in self.mixture
        )

    @property
    def title(self) -> str:
        """What messages call the text: the TFDS name, or those of the mixture with their rates."""
        return " + ".join(f"{rate:g} {name}" for name, rate in self.mixture) or self.tfds_name

    def train_iterator(self, **arguments: int) -> TrainIterator:
        from fire_lm.data import pipeline

        return pipeline.TrainIterator(self, **arguments)

    def scoring_text(self, *, length: int, num_sequences: int, split: str) -> ScoringText:
        from fire_lm.data import pipeline

        return pipeline.scoring_text(self, length=length, num_sequences=num_sequences, split=split)

    def vocabulary_name(self) -> str:
        """What messages call the vocabulary."""
        return self.vocabulary

    def vocabulary_size(self) -> int:
        from fire_lm.data import vocabularies

        return vocabularies.load(self.vocabulary).vocab_size

    def label(self) -> str:
        from fire_lm.data import corpus

        return corpus.dataset_label(self)

    def quick_splits(self) -> list[str] | None:
        """The splits that its metadata names, without TensorFlow; None where that does not say."""
        name, _, version = self.tfds_name.partition(":")
        if not version or in_bucket(self.data_dir):
            return None
        try:
            text = read_bytes(f"{self.data_dir}/{name}/{version}/dataset_info.json")
            return None if text is None else [one["name"] for one in json.loads(text)["splits"]]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def unknown_share(self, split: str) -> float:
        from fire_lm.data import survey

        return survey.unknown_share(self, split)


class NoText(UserError):
    """A split has no row of the length asked for."""


def share_unknown(targets: np.ndarray, unknown_id: int | None) -> float:
    """Of the tokens in `targets` (int, any shape; 0 is padding) those that are unknown."""
    if unknown_id is None:
        return 0.0
    return float(np.sum(targets == unknown_id)) / max(1, int(np.count_nonzero(targets)))


class NamedText(Protocol):
    """What a message needs of `TextData` or `Blocks`."""

    @property
    def title(self) -> str: ...
    def vocabulary_name(self) -> str: ...


def unknown_warning(share: float, split: str, data: NamedText) -> str:
    """What to tell the user, empty where few tokens are unknown."""
    if share <= UNKNOWN_SHARE:
        return ""
    return (
        f"warning: {share:.1%} of the {split} tokens of {data.title} are unknown to the vocabulary "
        f"{data.vocabulary_name()}: the loss leaves out what they say\n"
        "`fire-lm corpus vocab` trains a vocabulary that knows all text"
    )


@dataclasses.dataclass(frozen=True)
class ScoringText:
    """Fixed text to score.

    Attributes:
        targets: int32 [n, length]; 0 is padding, never scored.
        byte_counts: int32 [n, length]; bytes of the original text that each target stands for
            (0 for the end of a document and for padding).
        skipped: documents met while reading that were empty, undecodable or huge.
        unknown: share of the scored tokens that the vocabulary does not know.
        segment_ids: int32 [n, length] as in training, or None where rows are not packed.
    """

    targets: np.ndarray
    byte_counts: np.ndarray
    skipped: int
    unknown: float = 0.0
    segment_ids: np.ndarray | None = None
