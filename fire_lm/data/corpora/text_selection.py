"""The selection of documents and their assignment to splits, based only on their text."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

from fire_lm.data.corpora.text_files import Document
from fire_lm.data.spec import LONGEST_DOCUMENT
from fire_lm.errors import UserError

_SPLIT_HINT = (
    "each text file is one document: split the files with --split_on=blank_lines or "
    "--split_on=10000 (bytes), or "
)


@dataclasses.dataclass
class Counts:
    """The numbers of documents and bytes in each split, and of omitted documents by reason."""

    documents: dict[str, int]
    bytes: dict[str, int]
    left_out: dict[str, int]

    @classmethod
    def none(cls, splits: Sequence[str]) -> Counts:
        return cls(dict.fromkeys(splits, 0), dict.fromkeys(splits, 0), {})

    def leave_out(self, reason: str, count: int = 1) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + count

    def check(self, whole_files: bool = False) -> None:
        """Raise UserError if a split is empty.

        With `whole_files`, the message suggests splitting the text files.
        """
        for split, count in self.documents.items():
            if not count:
                omitted = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
                raise UserError(
                    f"The split {split!r} would be empty (documents in the other splits: "
                    f"{sum(self.documents.values())}; omitted documents: {omitted or 'none'})\n"
                    + (_SPLIT_HINT if whole_files else "")
                    + "provide more text, or change --validation_percent"
                )


def digest_of(text: bytes) -> bytes:
    """Return the SHA-256 of a text, which identifies the text."""
    return hashlib.sha256(text).digest()


def key_of(digest: bytes) -> str:
    """Return the key of a document in TFDS.

    The document's source would not be a unique key, because a file may be called `a.jsonl:1`, which
    is also the source of the first line of `a.jsonl`.
    """
    return digest.hex()


def split_of(digest: bytes, validation_percent: float) -> str:
    """Return 'train' or 'validation' for the document with this hash."""
    fraction = int.from_bytes(digest[:8]) / 2**64
    return "validation" if 100 * fraction < validation_percent else "train"


_TAR = 257  # where the header of a tar archive has its magic number


def unfit(text: bytes) -> str | None:
    """Return a brief reason for omitting a document, or None if the document is kept."""
    if not text.strip():
        return "empty"
    if text[_TAR : _TAR + 5] == b"ustar" and b"\0" in text[:_TAR]:
        return "tar archive"  # valid UTF-8 if its files are, as in the sources of arXiv
    if len(text) > LONGEST_DOCUMENT:
        return "huge"
    try:
        text.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return None


def choose(
    documents: Iterator[Document], split: str | None, validation_percent: float, counts: Counts
) -> Iterator[tuple[bytes, str, bytes]]:
    """Yield the digest, source and text of each document in one split, and count all documents.

    Only the first of several identical documents is kept. The hashes of all kept documents stay in
    memory, which takes 110 bytes per document (measured on 200,000 documents).
    """
    seen = set()
    for place, text in documents:
        digest = digest_of(text)
        problem = unfit(text) or ("duplicate" if digest[:16] in seen else None)
        if problem is not None:
            counts.leave_out(problem)
            continue
        seen.add(digest[:16])
        drawn = split_of(digest, validation_percent)
        counts.documents[drawn] += 1
        counts.bytes[drawn] += len(text)
        if drawn == split:
            yield digest, place, text
