"""Text that was tokenised once and is read by number: any row, any batch, on any number of hosts.

`fire-lm corpus blocks` writes a set (`writer.py`, the only file here that imports TensorFlow); one
set serves every length and every construction. Reading needs numpy and tensorstore alone.
"""

from __future__ import annotations

import dataclasses

from fire_lm.data.blocks import manifest as manifests
from fire_lm.data.blocks import reader, stream
from fire_lm.data.blocks.rows import CONSTRUCTIONS
from fire_lm.data.text import Construction, ScoringText


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Where the blocks are and how documents become rows; gin fills the fields.

    Attributes:
        path: the --output of `fire-lm corpus blocks`, local, gs:// or s3://.
        vocabulary: what they must have been made with: 'bytes' or the path of the SentencePiece
            model. Empty takes them as they are, for machines that have no copy of the model.
        construction: as `TextData.construction`.
    """

    path: str
    vocabulary: str = ""
    construction: Construction = "concat"

    @property
    def features(self) -> tuple[str, ...]:
        """The arrays of a batch: `targets`, and `segment_ids` where rows are packed."""
        segmented = CONSTRUCTIONS[self.construction].segmented
        return ("targets", "segment_ids") if segmented else ("targets",)

    @property
    def title(self) -> str:
        """What messages call the text."""
        return self.path

    @property
    def parts(self) -> tuple[Blocks, ...]:
        """What is scored separately: blocks are of one data set."""
        return (self,)

    def train_iterator(self, **arguments: int) -> reader.TrainIterator:
        return reader.TrainIterator(self, **arguments)

    def scoring_text(self, *, length: int, num_sequences: int, split: str) -> ScoringText:
        return reader.scoring_text(self, length=length, num_sequences=num_sequences, split=split)

    def vocabulary_name(self) -> str:
        """What messages call the vocabulary: its path, or the name of the file of the blocks'."""
        return self.vocabulary or stream.open_set(self.path, "").identity.vocabulary

    def vocabulary_size(self) -> int:
        return stream.open_set(self.path, self.vocabulary).identity.vocabulary_size

    def label(self) -> str:
        return stream.open_set(self.path, self.vocabulary).identity.label

    def quick_splits(self) -> list[str] | None:
        """The splits that there are; None where that is not quickly told."""
        found = None if "://" in self.path else manifests.read(self.path)
        return sorted(found.splits) if found else None

    def unknown_share(self, split: str) -> float:
        """Exact: of all tokens of the split, counted when the blocks were written."""
        manifest = stream.open_set(self.path, self.vocabulary)
        stream.check_split(self.path, manifest, split)
        return manifest.unknown_share(split)
