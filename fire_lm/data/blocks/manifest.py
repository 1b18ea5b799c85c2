"""The manifest of a set of blocks: a JSON file with its own checksum, written last.

It says enough to open every array without reading anything else, and to refuse a set that was made
by another vocabulary or another preprocessing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fire_lm.data import stores
from fire_lm.data.identity import PREPROCESSING
from fire_lm.errors import RunFailed, UserError

FILE_NAME = "manifest.json"
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """A directory of arrays, from one or more files of the source.

    Attributes:
        documents: of the source, skipped ones included.
        skipped: the empty, undecodable or huge ones among them; they have no tokens.
        tokens: with the end of each document.
        unknown: those of `tokens` that the vocabulary does not know.
        bytes: of the text of the documents that were not skipped.
        tokens_sha256: of the stream of tokens as stored, so that the same text is known again.
    """

    documents: int
    skipped: int
    tokens: int
    unknown: int
    bytes: int
    tokens_sha256: str


@dataclasses.dataclass(frozen=True)
class Identity:
    """Everything besides the text that determines the tokens.

    Attributes:
        dataset: the TFDS name with config and version.
        label: the text's name in results.
        vocabulary: its file's name, or 'bytes'.
        vocabulary_fingerprint: SHA-256 of its file, or 'bytes'.
        vocabulary_size: ids that it can emit, padding included.
        unknown_id: of text that it does not know; None if it can emit none.
        documents_per_group: in which documents were read; how much text is looked at to choose
            what is scored depends on it.
    """

    dataset: str
    label: str
    vocabulary: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    unknown_id: int | None
    documents_per_group: int
    preprocessing: str = PREPROCESSING
    format: int = FORMAT

    @property
    def token_dtype(self) -> np.dtype:
        """The smallest that holds every id."""
        return np.dtype(np.uint16 if self.vocabulary_size <= 2**16 else np.uint32)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A set of blocks: parts by split, in the order of the stream."""

    identity: Identity
    splits: Mapping[str, tuple[Part, ...]]

    def fingerprint(self, split: str) -> str:
        """The fingerprint of a split's token stream."""
        return _digest({"parts": [dataclasses.asdict(part) for part in self.splits[split]]})

    def unknown_share(self, split: str) -> float:
        """The share of unknown tokens in a split."""
        parts = self.splits[split]
        return sum(part.unknown for part in parts) / max(1, sum(part.tokens for part in parts))


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write JSON with a checksum of its content."""
    text = json.dumps({**content, "sha256": _digest(content)}, indent=1)
    stores.write_bytes(path, text.encode())  # no newline: every byte counts


def read_json(path: str) -> dict[str, Any] | None:
    """Read what `write_json` wrote; None if there is no such file.

    Raises:
        RunFailed: it is not what was written.
    """
    written = stores.read_bytes(path)
    if written is None:
        return None
    try:
        content = json.loads(written)
        if content.pop("sha256") == _digest(content):
            return content
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise RunFailed(f"{path} is damaged: it is not what `fire-lm corpus blocks` wrote.")


def write(path: str, manifest: Manifest) -> None:
    write_json(stores.join(path, FILE_NAME), dataclasses.asdict(manifest))


def read(path: str) -> Manifest | None:
    """The manifest of the set in the directory `path`, None if there is none.

    Raises:
        RunFailed: it is damaged. UserError: it was made by another version of this package.
    """
    content = read_json(stores.join(path, FILE_NAME))
    if content is None:
        return None
    identity = content["identity"]
    for name, now in (("format", FORMAT), ("preprocessing", PREPROCESSING)):
        if identity[name] != now:
            raise UserError(
                f"The blocks in {path} have {name} {identity[name]!r}, this program {now!r}.\n"
                "Write them again: `fire-lm corpus blocks --output=NEW_DIR`"
            )
    splits = {
        name: tuple(Part(**part) for part in parts) for name, parts in content["splits"].items()
    }
    return Manifest(Identity(**identity), splits)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
