"""Fingerprints of everything but the text that determines tokens: preprocessing and vocabulary."""

from __future__ import annotations

from fire_lm.data import stores
from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.data.spec import LONGEST_DOCUMENT
from fire_lm.errors import UserError

# Change this name whenever the same documents become other tokens or byte counts, so that older
# sets are refused. tests/data/test_blocks_writing.py stores the result of the current version.
PREPROCESSING = (
    f"skip documents that are empty, undecodable or over {LONGEST_DOCUMENT:,} bytes, "
    "append end of document; 1"
)


def vocabulary_fingerprint(vocabulary: str) -> str:
    """Return the SHA-256 of the vocabulary's file, or 'bytes'.

    Raises:
        UserError: There is no such file.
    """
    if vocabulary == "bytes":
        return vocabulary
    file = vocabulary
    if vocabulary.startswith(PREFIX):
        file = f"{vocabulary.removeprefix(PREFIX)}/tokenizer.json"
    found = stores.sha256(file)
    if found is None:
        raise UserError(
            f"Vocabulary file not found: {file}\n"
            "Pass what the blocks were made with: 'bytes', the path of a SentencePiece model, or "
            "hf:FOLDER."
        )
    return found
