"""Files that a run needs later: their absolute paths, their SHA-256, and copies of vocabularies."""

from __future__ import annotations

import os
import sys

from etils import epath

from fire_lm.data.hub_vocabulary import FILES as HUB_FILES
from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.data.identity import vocabulary_fingerprint
from fire_lm.errors import UserError
from fire_lm.storage import in_bucket, make_folder, place, read_bytes, replace_bytes, sha256

COPIES = "vocabulary"  # the folder, in the run directory, of the copy of the vocabulary
LARGEST_COPY = 2**26  # bytes


def absolute(path: str, folder: str = "") -> str:
    """Return a path, or the name of a vocabulary, that does not depend on the current folder."""
    kind, path = split_kind(path)
    if path in ("", "bytes") or in_bucket(path):
        return f"{kind}{path}"
    return kind + os.path.abspath(os.path.join(folder or os.getcwd(), path))


def split_kind(vocabulary: str) -> tuple[str, str]:
    """Return the prefix of the name of a vocabulary, `hf:` or "", and its path."""
    kind = PREFIX if vocabulary.startswith(PREFIX) else ""
    return kind, vocabulary.removeprefix(kind)


def fingerprint(vocabulary: str) -> str | None:
    """Return the SHA-256 of a vocabulary, 'bytes', or None if its file does not exist."""
    try:
        return vocabulary_fingerprint(vocabulary)
    except UserError:  # there is no such file
        return None


def sha256_or_empty(path: str) -> str:
    """Return the SHA-256 of a file, or "" if it does not exist."""
    return sha256(place(path)) or ""


def module_source(name: str) -> tuple[str, str]:
    """Return the path and the SHA-256 of the source of an imported module."""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return path, sha256_or_empty(path) if path else ""


def copy_vocabulary(vocabulary: str, workdir: str | epath.Path) -> str:
    """Copy a vocabulary into the run directory, and return the name of the copy, or ""."""
    kind, path = split_kind(vocabulary)
    if vocabulary in ("", "bytes"):
        return ""
    name = os.path.basename(path.rstrip("/"))
    files = {f"{name}/{file}": f"{path}/{file}" for file in HUB_FILES} if kind else {name: path}
    contents = {copy: read_bytes(place(original)) for copy, original in files.items()}
    if sum(len(content or b"") for content in contents.values()) > LARGEST_COPY:
        return ""
    folder = place(workdir) / COPIES
    for copy, content in contents.items():
        if content is not None and read_bytes(folder / copy) != content:
            make_folder((folder / copy).parent)
            replace_bytes(folder / copy, content, durable=True)
    return f"{kind}{COPIES}/{name}" if any(contents.values()) else ""
