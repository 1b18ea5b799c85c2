"""Text that was tokenised once."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from fire_lm.data.base import TextSource
from fire_lm.data.batches import ScoringText, TrainIterator
from fire_lm.data.blocks import manifest as manifests
from fire_lm.data.blocks import reader
from fire_lm.data.blocks.stream import check_split, open_set
from fire_lm.data.spec import Construction
from fire_lm.errors import FireLMError


@dataclasses.dataclass(frozen=True)
class Blocks(TextSource):
    """The location of blocks and the way their documents become rows, configured by gin.

    Attributes:
      path: The directory that `fire-lm corpus blocks --output` wrote, which may be local or on
        gs:// or s3://.
      vocabulary: The vocabulary with which the blocks must have been made, specified as in
        `TextData`. An empty string accepts any blocks and is meant for machines without a copy
        of the vocabulary file.
      construction: See `TextData.construction`.
    """

    path: str
    vocabulary: str = ""
    construction: Construction = "concat"
    paths: ClassVar[dict[str, str]] = {"path": "data", "vocabulary": "vocabulary"}
    any_hosts = True

    @property
    def title(self) -> str:
        return self.path

    def train_iterator(self, **arguments: int) -> TrainIterator:
        return reader.BlockIterator(self, **arguments)

    def scoring_text(self, *, length: int, num_sequences: int, split: str) -> ScoringText:
        return reader.scoring_text(self, length=length, num_sequences=num_sequences, split=split)

    def vocabulary_name(self) -> str:
        """Return `vocabulary` or, if it is empty, the vocabulary's name in the manifest."""
        return self.vocabulary or open_set(self.path, "").identity.vocabulary

    def vocabulary_identity(self) -> str | None:
        if self.vocabulary:
            return super().vocabulary_identity()
        manifest = manifests.read(self.path)
        return manifest.identity.vocabulary_fingerprint if manifest else None

    def vocabulary_size(self) -> int:
        return open_set(self.path, self.vocabulary).identity.vocabulary_size

    def label(self) -> str:
        return open_set(self.path, self.vocabulary).identity.label

    def known_label(self) -> str:
        try:
            manifest = manifests.read(self.path)
        except FireLMError:  # another version wrote the blocks, or their bucket denies access
            return ""
        return manifest.identity.label if manifest else ""

    def text_name(self) -> str:
        """Return the name in the manifest, or the path: no other setting identifies the text."""
        return self.known_label() or self.path

    def quick_splits(self) -> list[str] | None:
        manifest = None if "://" in self.path else manifests.read(self.path)
        return sorted(manifest.splits) if manifest else None

    def unknown_share(self, split: str) -> float:
        """Return the exact share of unknown tokens in a split, as counted when it was written."""
        manifest = open_set(self.path, self.vocabulary)
        check_split(self.path, manifest, split)
        return manifest.unknown_share(split)
