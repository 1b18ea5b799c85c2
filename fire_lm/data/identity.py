"""Fingerprints of what determines the tokens besides the text: preprocessing and vocabulary."""

from __future__ import annotations

from fire_lm.data import stores
from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.data.spec import LONGEST_DOCUMENT
from fire_lm.errors import UserError

# Another name whenever the same documents become other tokens or byte counts, so that older sets
# are refused. tests/data/test_blocks_writing.py holds what this one gives.
PREPROCESSING = (
    f"skip documents that are empty, undecodable or over {LONGEST_DOCUMENT:,} bytes, "
    "append end of document; 1"
)


def vocabulary_fingerprint(vocabulary: str) -> str:
    """SHA-256 of the vocabulary's file, or 'bytes'.

    Raises:
        UserError: there is no such file.
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
            "It is 'bytes', the path of the SentencePiece model, or the hf:FOLDER that made the "
            "blocks."
        )
    return found
