"""Conversion between text and token ids with a run's vocabulary, without TensorFlow.

Every function raises UserError if the vocabulary is missing, or is not 'bytes', a SentencePiece
model or `hf:FOLDER`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fire_lm.data.base import Tokenized
from fire_lm.data.hub_vocabulary import PREFIX, load_hub
from fire_lm.errors import UserError
from fire_lm.storage import read_bytes

_END_OF_DOCUMENT = 1  # the id in the byte vocabulary
# In seqio.ByteVocabulary, padding is 0, end of document is 1, unknown is 2, and byte b is b + 3.
_FIRST_BYTE = 3


def encode(data: Tokenized, text: str) -> np.ndarray:
    """Return the ids of `text`, int32 `[T]`, without an end-of-document token."""
    if data.vocabulary == "bytes":
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + _FIRST_BYTE
    if data.vocabulary.startswith(PREFIX):
        return load_hub(data.vocabulary).encode(text)
    return np.array(_sentencepiece(data.vocabulary).EncodeAsIds(text), np.int32)


def decode(data: Tokenized, tokens: Iterable[int]) -> str:
    """Decode token ids to text, skipping ids that represent no text, such as padding."""
    ids = [int(token) for token in tokens]
    if data.vocabulary == "bytes":
        values = (token - _FIRST_BYTE for token in ids)
        return bytes(value for value in values if 0 <= value < 256).decode(errors="replace")
    if data.vocabulary.startswith(PREFIX):
        return load_hub(data.vocabulary).decode(ids)
    processor = _sentencepiece(data.vocabulary)
    return processor.DecodeIds([token for token in ids if 0 < token < processor.GetPieceSize()])


def decode_after(data: Tokenized, before: Sequence[int] | np.ndarray, tokens: Iterable[int]) -> str:
    """Decode token ids that continue the text of the ids `before`.

    The two texts together are what all ids decode to. To decode `tokens` alone would not give that
    text, because a decoder omits the space at the beginning of a text, and a character can consist
    of several tokens. After an end-of-document token, a new text begins.
    """
    ends = np.flatnonzero(np.asarray(before) == end_of_document(data))
    begun = list(before[int(ends[-1]) + 1 if ends.size else 0 :])
    whole = decode(data, [*begun, *tokens])
    return whole[len(os.path.commonprefix([decode(data, begun), whole])) :]


def end_of_document(data: Tokenized) -> int:
    """Return the id that ends each document."""
    if data.vocabulary == "bytes":
        return _END_OF_DOCUMENT
    if data.vocabulary.startswith(PREFIX):
        return load_hub(data.vocabulary).end_of_document
    return int(_sentencepiece(data.vocabulary).eos_id())


def unknown(data: Tokenized, text: str) -> str:
    """Return the first piece of `text` that the vocabulary cannot represent, or ""."""
    if data.vocabulary == "bytes":
        return ""
    if data.vocabulary.startswith(PREFIX):
        return load_hub(data.vocabulary).unknown(text)
    processor = _sentencepiece(data.vocabulary)
    ids, pieces = processor.EncodeAsIds(text), processor.EncodeAsPieces(text)
    unknown = (
        piece for token, piece in zip(ids, pieces, strict=True) if processor.IsUnknown(token)
    )
    return next(unknown, "")


def never_decoded(data: Tokenized, text: str) -> str:
    """Return the reason why decoded text never contains `text`, or "" if it may contain it.

    Spaces at both ends are ignored: a decoder may omit them at the beginning and end of a text.
    """
    if lacking := unknown(data, text):
        return f"the vocabulary {data.vocabulary} cannot represent {lacking!r}"
    normalised = decode(data, encode(data, text))
    if text.strip(" ") not in normalised:
        return f"the vocabulary {data.vocabulary} turns it into {normalised!r}"
    return ""


@functools.lru_cache(maxsize=8)
def _sentencepiece(path: str) -> Any:
    from sentencepiece import SentencePieceProcessor

    if not path:
        raise UserError("the blocks were opened without a vocabulary: set Blocks.vocabulary")
    content = read_bytes(path)
    if content is None:
        raise UserError(
            f"there is no vocabulary file {path}\n"
            "the vocabulary must be 'bytes', the path of a SentencePiece model, or hf:FOLDER"
        )
    try:
        return SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model") from error
