"""The identity of the preprocessing and of the vocabulary, which together turn text into tokens."""

from __future__ import annotations

from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.data.spec import LONGEST_DOCUMENT
from fire_lm.errors import RunFailed, UserError, reason
from fire_lm.storage import sha256

# Change this name whenever the same documents yield different tokens or byte counts, so that blocks
# from an older version are rejected. tests/data/test_blocks_writing.py stores the result of the
# current version.
PREPROCESSING = (
    f"skip documents that are empty, undecodable or over {LONGEST_DOCUMENT:,} bytes, "
    "append end of document; 1"
)


def vocabulary_fingerprint(vocabulary: str) -> str:
    """Return the SHA-256 of the vocabulary's file, or 'bytes' for the byte vocabulary.

    Raises:
      UserError: The file does not exist.
    """
    if vocabulary == "bytes":
        return vocabulary
    file = vocabulary
    if vocabulary.startswith(PREFIX):
        file = f"{vocabulary.removeprefix(PREFIX)}/tokenizer.json"
    try:
        digest = sha256(file)
    except OSError as error:
        raise RunFailed(f"Reading {file} failed: {reason(error)}") from error
    if digest is None:
        raise UserError(
            f"Vocabulary file not found: {file}\n"
            "The vocabulary must be 'bytes', the path of a SentencePiece model, or hf:FOLDER"
        )
    return digest
