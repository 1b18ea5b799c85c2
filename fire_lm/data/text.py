"""What text to read and what a read gives back: plain dataclasses, no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np


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


@dataclasses.dataclass(frozen=True)
class ScoringText:
    """Fixed text to score.

    Attributes:
        targets: int32 [n, length]; 0 is padding, never scored.
        byte_counts: int32 [n, length]; bytes of the original text that each target stands for
            (0 for the end of a document and for padding).
        skipped: documents met while reading that were empty or undecodable.
    """

    targets: np.ndarray
    byte_counts: np.ndarray
    skipped: int
