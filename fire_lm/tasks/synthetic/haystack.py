"""Prompts that hide sentences in noise or in the text of a local file; each symbol is a byte."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Sequence

import numpy as np

from fire_lm.errors import UserError

# The byte of each symbol. Digits and letters come first, so that answers that consist of them need
# few symbols.
DIGITS, CAPITALS, LETTERS = (
    b"0123456789",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"abcdefghijklmnopqrstuvwxyz",
)
_FIRST = DIGITS + CAPITALS + LETTERS
BYTES = _FIRST + bytes(byte for byte in range(256) if byte not in _FIRST)
_SYMBOL = np.argsort(np.frombuffer(BYTES, np.uint8))
HYPHEN = int(_SYMBOL[ord("-")])

# The filler of Mohtashami and Jaggi 2023 (arXiv:2305.16300), which RULER also uses.
NOISE = (
    b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)


def symbols_of(text: bytes) -> np.ndarray:
    """Return the symbol of each byte of the text, int [n]."""
    return _SYMBOL[np.frombuffer(text, np.uint8)].astype(np.int64)


@functools.lru_cache(maxsize=8)
def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise UserError(f"cannot read the text file {path}: {error.strerror}") from error
    if not text:
        raise UserError(f"the text file {path} is empty: use another file")
    return text


def text_digest(path: str) -> str:
    """Return the SHA-256 digest of the text of a file."""
    return hashlib.sha256(_read(path)).hexdigest()


def filler(rng: np.random.Generator, path: str, size: int) -> bytes:
    """Return `size` bytes of noise sentences or, if `path` is given, of the text of a file.

    The text of a file starts at a random offset. Noise or text that is too short is repeated.
    """
    text = _read(path) if path else NOISE
    start = int(rng.integers(len(text))) if path else 0
    return (text[start:] + text * (size // len(text) + 1))[:size]


def prompt(
    rng: np.random.Generator, path: str, needles: Sequence[bytes], question: bytes, size: int
) -> bytes:
    """Return a prompt of `size` bytes: filler that hides the needles, followed by the question.

    The needles keep their order. The position of each needle is drawn uniformly from the beginning
    of the filler, its end, and the positions after its spaces.
    """
    hay = filler(rng, path, size - len(question) - sum(map(len, needles)))
    gaps = np.flatnonzero(np.frombuffer(hay, np.uint8) == ord(" ")) + 1
    places = np.unique(np.concatenate([[0], gaps, [len(hay)]]))
    cuts = np.sort(rng.choice(places, len(needles))).tolist()
    parts = [hay[a:b] for a, b in zip([0, *cuts], [*cuts, len(hay)], strict=True)]
    hidden = [part + needle for part, needle in zip(parts, [*needles, question], strict=True)]
    return b"".join(hidden)


def random_bytes(rng: np.random.Generator, alphabet: bytes, size: int) -> bytes:
    """Draw `size` bytes from the alphabet, independently and uniformly."""
    return rng.choice(np.frombuffer(alphabet, np.uint8), size).tobytes()


def random_uuid(rng: np.random.Generator) -> bytes:
    """Draw a random UUID (version 4), which is 32 hexadecimal digits and 4 hyphens."""
    return str(uuid.UUID(bytes=rng.bytes(16), version=4)).encode()


def distinct_words(
    rng: np.random.Generator, count: int, size: int, alphabet: bytes = LETTERS
) -> list[bytes]:
    """Draw `count` distinct words of `size` letters, in random order.

    Raises:
      UserError: The alphabet allows fewer than twice as many such words.
    """
    if count > len(alphabet) ** size // 2:
        raise UserError(
            f"{count} distinct words are more than half of all words of length {size}: "
            "use longer words"
        )
    words: dict[bytes, None] = {}
    while len(words) < count:
        words[random_bytes(rng, alphabet, size)] = None
    return list(words)
