"""What text to read and what a read gives back: plain dataclasses.

TensorFlow is imported by the methods that need it, and only once they are called (10 s).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from fire_lm.data.pipeline import TrainIterator

# Rows read for each row scored: taken evenly from them, so that a few rows of a small set do not
# all come from one or two documents.
SCORING_SPREAD = 8

Construction = Literal["concat", "cut", "packed", "long_documents"]
CONSTRUCTIONS: tuple[str, ...] = get_args(Construction)


@dataclasses.dataclass(frozen=True)
class TextData:
    """Where the text is and how documents become rows; gin fills the fields.

    Attributes:
        data_dir: TFDS data directory, local or gs://.
        tfds_name: TFDS name with config and version; any set with a `text` feature.
        vocabulary: 'bytes' (seqio.ByteVocabulary: padding 0, end of document 1, unknown 2, byte b
            is id b + 3), or the path of a SentencePiece model, local or gs://.
        construction: 'concat' joins documents and chops the stream into full rows; 'cut' splits
            each document into rows of its own, the last one padded.
        shuffle_buffer: rows that are shuffled together, per shard. The saved position does not
            grow with it; the time to the first batch does.
    """

    data_dir: str
    tfds_name: str = "c4/en:3.1.0"
    vocabulary: str = "bytes"
    construction: Literal["concat", "cut"] = "concat"
    shuffle_buffer: int = 1000

    def train_iterator(self, **arguments: int) -> TrainIterator:
        from fire_lm.data import pipeline

        return pipeline.TrainIterator(self, **arguments)

    def scoring_text(self, *, length: int, num_sequences: int, split: str) -> ScoringText:
        from fire_lm.data import pipeline

        return pipeline.scoring_text(self, length=length, num_sequences=num_sequences, split=split)

    def vocabulary_size(self) -> int:
        from fire_lm.data import vocabularies

        return vocabularies.load(self.vocabulary).vocab_size

    def label(self) -> str:
        from fire_lm.data import corpus

        return corpus.dataset_label(self)


@dataclasses.dataclass(frozen=True)
class ScoringText:
    """Fixed text to score.

    Attributes:
        targets: int32 [n, length]; 0 is padding, never scored.
        byte_counts: int32 [n, length]; bytes of the original text that each target stands for
            (0 for the end of a document and for padding).
        skipped: documents met while reading that were empty, undecodable or huge.
        segment_ids: int32 [n, length] as in training, or None where rows are not packed.
    """

    targets: np.ndarray
    byte_counts: np.ndarray
    skipped: int
    segment_ids: np.ndarray | None = None
