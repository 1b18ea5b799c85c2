"""Vocabularies `hf:FOLDER`, read from the `tokenizer.json` of a Hugging Face model such as GPT-2.

In fire_lm, id 0 is padding, but in such a tokenizer, id 0 may be a piece of text. Every id in
fire_lm is therefore one higher than the corresponding id in the folder.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fire_lm.errors import UserError
from fire_lm.storage import read_bytes

PREFIX = "hf:"
# The files of FOLDER that determine the vocabulary.
FILES = ("tokenizer.json", "config.json", "tokenizer_config.json")
SHIFT = 1  # fire_lm's id for the tokenizer's id 0
# The field of config.json in which `fire-lm export` stores the run's configuration. A folder with
# this field already uses fire_lm's ids. The field remains when transformers loads and saves the
# model.
EXPORTED = "fire_lm_configuration"


class HubVocabulary:
    """A Hugging Face tokenizer whose ids are shifted by one.

    Attributes:
      size: The number of ids, including padding and ids below the largest one that have no token.
      end_of_document: The id that ends a document.
      end_token: The text of the end-of-document token.
      unknown_id: The id for text that the vocabulary cannot represent, or None if there is no such
        id.
    """

    def __init__(self, tokenizer: Any, end: int, unknown: int | None):
        self._tokenizer = tokenizer
        # Ids may have holes, so their count can be smaller than the largest id.
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1 + SHIFT
        self.end_of_document = end + SHIFT
        self.end_token = str(tokenizer.id_to_token(end))
        self.unknown_id = None if unknown is None else unknown + SHIFT

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of `text` as int32 `[T]`.

        The text of a special token is encoded like any other text.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32) + np.int32(SHIFT)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, omitting special tokens and padding."""
        kept = [token - SHIFT for token in ids if SHIFT <= token < self.size]
        return str(self._tokenizer.decode(kept, skip_special_tokens=True))

    def unknown(self, text: str) -> str:
        """Return the first part of `text` that cannot be represented, or "" if there is none."""
        if self.unknown_id is None:
            return ""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        parts = zip(encoding.ids, encoding.offsets, strict=True)
        spans = (span for token, span in parts if token + SHIFT == self.unknown_id)
        start, end = next(spans, (0, 0))
        return text[start:end]

    def encode_documents(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the id and byte count of every token, and the number of tokens in each text.

        The three arrays are int32 [tokens], int32 [tokens] and int64 [texts]. A token covers all
        bytes from its start to the start of the next token, and the first token also covers any
        bytes before its start. The byte counts of a text with tokens therefore sum to its size.
        """
        decoded = [text.decode() for text in texts]
        ids, counts, lengths = [], [], []
        for text, encoding in zip(
            decoded, self._tokenizer.encode_batch(decoded, add_special_tokens=False), strict=True
        ):
            ids += encoding.ids
            lengths.append(len(encoding.ids))
            if encoding.ids:
                at = _byte_places(text)
                starts = [at[start] for start, _ in encoding.offsets[1:]]
                counts.append(np.diff([0, *starts, at[-1]]))
        joined = np.concatenate(counts) if counts else np.zeros(0)
        shifted = np.array(ids, np.int32) + np.int32(SHIFT)
        return shifted, joined.astype(np.int32), np.array(lengths, np.int64)


@functools.lru_cache(maxsize=8)
def load_hub(name: str) -> HubVocabulary:
    """Load the vocabulary `hf:FOLDER`.

    Raises:
      UserError: A file is missing or damaged, the vocabulary has no end-of-document token, or
        another id for it than that of a token, the folder was written by `fire-lm export`, or the
        `tokenizers` package is not installed.
    """
    folder = name.removeprefix(PREFIX)
    tokenizer_json = read_tokenizer(name)
    config = _json(folder, "config.json") or {}
    if EXPORTED in config:
        raise UserError(
            f"vocabulary {name}: this folder was written by `fire-lm export`; use the vocabulary "
            "of the exported run instead"
        )
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UserError(
            "the package tokenizers is not installed: run `pip install -e '.[hf]'` in the checkout"
        ) from error
    # Remove the steps that add tokens, truncate or pad texts, or trim the offsets of tokens.
    plain = tokenizer_json | dict.fromkeys(("post_processor", "truncation", "padding"))
    try:
        tokenizer = Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises plain Exceptions
        raise UserError(f"{folder}/tokenizer.json is not a valid tokenizer: {error}") from error
    tokenizer.encode_special_tokens = True
    end = config.get("eos_token_id")
    if not isinstance(end, int):
        token = (_json(folder, "tokenizer_config.json") or {}).get("eos_token")
        end = tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token or "")
    if end is None:
        raise UserError(
            f"vocabulary {name}: there is no end-of-document token\n"
            f"set eos_token_id in {folder}/config.json"
        )
    if end not in tokenizer.get_vocab(with_added_tokens=True).values() or isinstance(end, bool):
        raise UserError(
            f"vocabulary {name}: eos_token_id is {end} in {folder}/config.json: it must be the id "
            "of a token in tokenizer.json"
        )
    model = tokenizer_json["model"]  # unigram models specify the id of the unknown piece
    unknown = model.get("unk_id")
    if unknown is None and model.get("unk_token"):
        unknown = tokenizer.token_to_id(model["unk_token"])
    return HubVocabulary(tokenizer, end, unknown)


def read_tokenizer(name: str) -> dict[str, Any]:
    """Return the content of `tokenizer.json` in the folder of the vocabulary `hf:FOLDER`.

    Raises:
      UserError: The file is missing or is not a JSON object.
    """
    folder = name.removeprefix(PREFIX)
    content = _json(folder, "tokenizer.json")
    if content is None:
        raise UserError(f"vocabulary {name}: there is no file {folder}/tokenizer.json")
    return content


def _json(folder: str, file: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist."""
    content = read_bytes(f"{folder}/{file}")
    if content is None:
        return None
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise UserError(f"{folder}/{file} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise UserError(f"{folder}/{file} is not a JSON object")
    return parsed


def _byte_places(text: str) -> np.ndarray:
    """Return the UTF-8 byte offset of every character, followed by the total number of bytes."""
    code = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
    return np.concatenate([[0], np.cumsum(widths)])
