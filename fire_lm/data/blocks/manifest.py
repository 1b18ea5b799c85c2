"""The manifest of a set of blocks, a JSON file that contains its own checksum and is written last.

The manifest contains all information that is needed to open the arrays, and to reject a set that
was made with another vocabulary or other preprocessing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fire_lm.data import stores
from fire_lm.data.identity import PREPROCESSING
from fire_lm.errors import RunFailed, UserError, reason
from fire_lm.storage import make_folder, read_bytes, replace_text

FILE_NAME = "manifest.json"
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """The description of a part: a directory of arrays made from one or more source files.

    Attributes:
      documents: The number of documents in these files, including skipped documents.
      skipped: The number of empty, undecodable or huge documents, which have no tokens.
      tokens: The number of tokens, including the end-of-document tokens.
      unknown: The number of tokens that are unknown to the vocabulary.
      bytes: The size of the text of all documents that were not skipped.
      tokens_sha256: The SHA-256 of the stored token stream, which identifies the text.
    """

    documents: int
    skipped: int
    tokens: int
    unknown: int
    bytes: int
    tokens_sha256: str


@dataclasses.dataclass(frozen=True)
class Identity:
    """The data set, vocabulary and format of a set of blocks, which all its parts share.

    Attributes:
      dataset: The TFDS name with config and version.
      label: The name of the text in results.
      vocabulary: The base name of the vocabulary's file or folder, or 'bytes'.
      vocabulary_fingerprint: The SHA-256 of the vocabulary's file, or 'bytes'.
      vocabulary_size: The number of ids that the vocabulary can produce, including padding.
      unknown_id: The id of unknown text, or None if the vocabulary has no such id.
      documents_per_group: The number of documents read together, which affects the amount of text
        from which the scored rows are chosen.
      preprocessing: The name of the preprocessing; see `fire_lm.data.identity`.
      format: The version of the file format.
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
        """uint16 if it can represent every id, otherwise uint32."""
        return np.dtype(np.uint16 if self.vocabulary_size <= 2**16 else np.uint32)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a set of blocks.

    `splits` maps the name of each split to the split's parts in stream order.
    """

    identity: Identity
    splits: Mapping[str, tuple[Part, ...]]

    def fingerprint(self, split: str) -> str:
        """Return a SHA-256 that identifies a split's token stream."""
        return _digest({"parts": [dataclasses.asdict(part) for part in self.splits[split]]})

    def unknown_share(self, split: str) -> float:
        """Return the share of unknown tokens in a split."""
        parts = self.splits[split]
        return sum(part.unknown for part in parts) / max(1, sum(part.tokens for part in parts))


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON file that includes a checksum of its content."""
    text = json.dumps({**content, "sha256": _digest(content)}, indent=1)
    # There is no final newline, so that any changed byte is noticed.
    try:
        make_folder(os.path.dirname(path) or ".")
        replace_text(path, text, durable=True)
    except OSError as error:
        raise RunFailed(f"Writing {path} failed: {reason(error)}") from error


def read_json(path: str) -> dict[str, Any] | None:
    """Read a file that `write_json` wrote, or return None if the file does not exist.

    Raises:
      RunFailed: The file cannot be read, or its content has changed.
      UserError: The path has an unsupported scheme.
    """
    try:
        written = read_bytes(path)
    except OSError as error:
        raise RunFailed(f"Reading {path} failed: {reason(error)}") from error
    except ValueError as error:  # the scheme is not one of TensorStore's
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    if written is None:
        return None
    try:
        content = json.loads(written)
        if content.pop("sha256") == _digest(content):
            return content
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise RunFailed(
        f"{path} is damaged: it has changed since `fire-lm corpus blocks` wrote it\n"
        "Remove that file and run `fire-lm corpus blocks` again"
    )


def write(path: str, manifest: Manifest) -> None:
    write_json(stores.join(path, FILE_NAME), dataclasses.asdict(manifest))


def read(path: str) -> Manifest | None:
    """Return the manifest of the set of blocks in `path`, or None if there is no manifest.

    Raises:
      RunFailed: The manifest is damaged.
      UserError: Another version of this package wrote the manifest.
    """
    content = read_json(stores.join(path, FILE_NAME))
    if content is None:
        return None
    identity = content["identity"]
    for name, now in (("format", FORMAT), ("preprocessing", PREPROCESSING)):
        if identity[name] != now:
            raise UserError(
                f"The blocks in {path} have {name} {identity[name]!r}, but this version of fire_lm "
                f"expects {now!r}\n"
                "Write them again: `fire-lm corpus blocks --output=NEW_DIR`"
            )
    splits = {
        name: tuple(Part(**part) for part in parts) for name, parts in content["splits"].items()
    }
    return Manifest(Identity(**identity), splits)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
