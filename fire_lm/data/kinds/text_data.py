"""Documents of TFDS data sets."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import ClassVar, Self

from fire_lm.data.kinds.by_seqio import Reader, TextBySeqio
from fire_lm.data.spec import EMBEDDED_MANIFEST, EMBEDDED_VERSION, Construction, DataSet
from fire_lm.errors import FireLMError, UserError
from fire_lm.storage import in_bucket, place, present, read_bytes


@dataclasses.dataclass(frozen=True)
class TextData(DataSet, TextBySeqio):
    """The location of a TFDS data set and the way its documents become rows, configured by gin.

    Attributes:
      data_dir: The TFDS data directory, which may be local or on gs://.
      tfds_name: The TFDS name, with config and version, of a data set with a `text` feature.
      vocabulary: 'bytes' for seqio.ByteVocabulary (padding is 0, end of document is 1, unknown is
        2, and byte b has id b + 3), the local or gs:// path of a SentencePiece model, or
        hf:FOLDER for the `tokenizer.json` of a Hugging Face model. The last form can be used to
        write blocks and to score, but not for training on the fly.
      construction: How documents, each with its end-of-document token, become rows of n tokens.
        'concat' joins the documents and splits the stream into full rows. 'cut' splits each
        document into its own rows and pads the last row. 'packed' places these parts side by
        side in rows (next-fit); each part is a segment with its own positions and attention.
        'long_documents' takes the first n tokens of each document that has at least n tokens.
      shuffle_buffer: The number of rows that each shard shuffles together. A larger buffer delays
        the first batch but does not enlarge the saved position.
      mixture: The data sets in `data_dir` to read instead of `tfds_name`, and the rates at which
        their rows are drawn: (('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1)) takes a quarter of the
        rows from arXiv. Only training reads a mixture as a whole; a sweep scores each data set
        separately.
    """

    vocabulary: str = "bytes"
    construction: Construction = "concat"
    shuffle_buffer: int = 1000
    mixture: tuple[tuple[str, float], ...] = ()
    # The parameters that are paths, and their kinds, by which a run finds them again
    # (`fire_lm.runs.inputs`).
    paths: ClassVar[dict[str, str]] = {"data_dir": "data", "vocabulary": "vocabulary"}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, rate in self.mixture:
            if not 0 < rate < math.inf:
                raise UserError(
                    f"TextData.mixture: the rate of {name} must be positive and finite, not {rate}"
                )
            if [other for other, _ in self.mixture].count(name) > 1:
                raise UserError(f"TextData.mixture contains {name} twice: list it once")

    @property
    def parts(self) -> tuple[Self, ...]:
        """The data sets of the mixture, or only this data set if there is no mixture."""
        if not self.mixture:
            return (self,)
        return tuple(
            dataclasses.replace(self, tfds_name=name, mixture=()) for name, _ in self.mixture
        )

    @property
    def title(self) -> str:
        """The name for use in messages: the TFDS name, or the mixture's names and rates."""
        return " + ".join(f"{rate:g} {name}" for name, rate in self.mixture) or self.tfds_name

    def label(self) -> str:
        """Return the name of the text in results.

        It includes the config of the data set, as in 'c4/realnewslike', except for English C4,
        which the paper calls C4.
        """
        name, _, version = self.tfds_name.partition(":")
        could_be_embedded = name in ("c4", "c4/en") and (
            version in ("", EMBEDDED_VERSION) or "*" in version
        )
        if could_be_embedded and (place(self.data_dir) / EMBEDDED_MANIFEST).exists():
            return "embedded"
        return "c4" if name == "c4/en" else name

    def known_label(self) -> str:
        try:
            known = present(place(self.data_dir) / self.tfds_name.partition(":")[0])
        except FireLMError:  # a bucket to which this machine has no access
            return ""
        return self.label() if known else ""

    def quick_splits(self) -> list[str] | None:
        name, _, version = self.tfds_name.partition(":")
        if not version or in_bucket(self.data_dir):
            return None
        try:
            text = read_bytes(f"{self.data_dir}/{name}/{version}/dataset_info.json")
            return None if text is None else [split["name"] for split in json.loads(text)["splits"]]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def vocabulary_size(self) -> int:
        from fire_lm.data import vocabularies

        return int(vocabularies.load(self.vocabulary).vocab_size)

    def unknown_share(self, split: str) -> float:
        from fire_lm.data.on_the_fly import survey

        return survey.unknown_share(self, split)

    @property
    def reader(self) -> Reader:
        from fire_lm.data.on_the_fly import tasks

        return tasks
