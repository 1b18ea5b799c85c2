"""A data set of TFDS as a value, and the constants that all readers and writers of text share."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

# Longer documents are skipped, because SentencePiece needs up to 230 bytes of memory for each byte
# of text (measured).
LONGEST_DOCUMENT = 2**24  # bytes
# The file that marks a data directory as containing the embedded text (`corpora.embedded`).
EMBEDDED_MANIFEST = "fire_lm_corpus.json"
EMBEDDED_VERSION = "3.1.0"  # of the data set c4/en, whose name and schema this text has
# The number of rows read per scored row. The scored rows are spread evenly over the rows read, so
# that a small number of scored rows does not come from only one or two documents.
SCORING_SPREAD = 8

Construction = Literal["concat", "cut", "packed", "long_documents"]
CONSTRUCTIONS: tuple[Construction, ...] = get_args(Construction)


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of TFDS, by its name in a directory, which may be local or on gs://."""

    data_dir: str
    tfds_name: str = "c4/en:3.1.0"

    @property
    def title(self) -> str:
        """The name for use in messages."""
        return self.tfds_name

    @property
    def where(self) -> str:
        """A description of the data and its location for use in messages."""
        return f"{self.title} in {self.data_dir}"
