"""Functions that split a text file into documents, at blank lines or by size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fire_lm.data.spec import LONGEST_DOCUMENT

BLANK_LINES = "blank_lines"
SMALLEST = 16  # the minimum size of a piece in bytes
# BLANK_LINES, or the size of a piece in bytes.
SplitOn = str | int


def is_split_rule(rule: SplitOn) -> bool:
    return rule == BLANK_LINES or (isinstance(rule, int) and SMALLEST <= rule <= LONGEST_DOCUMENT)


def split_text(stream: Any, rule: SplitOn) -> Iterator[bytes]:
    """Yield the documents into which `rule` splits a binary stream.

    The stream is read piece by piece, because a complete file may not fit in memory.
    """
    if isinstance(rule, int):
        return _of_size(stream, rule)
    return _between_blank_lines(stream)


def _between_blank_lines(stream: Any) -> Iterator[bytes]:
    """Yield the documents between blank lines, without the blank lines.

    A document longer than LONGEST_DOCUMENT bytes is cut off after the read that exceeds the limit,
    so at most 2 * LONGEST_DOCUMENT + 1 bytes are kept. It is still long enough to count as huge.
    """
    lines: list[bytes] = []
    size = 0
    while line := stream.readline(LONGEST_DOCUMENT + 1):
        if line.strip():
            if size <= LONGEST_DOCUMENT:
                lines.append(line)
                size += len(line)
        elif lines:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _of_size(stream: Any, size: int) -> Iterator[bytes]:
    """Yield pieces of at most `size` bytes, each split after a newline in its second half.

    If there is no such newline, a piece is split after a space, or else after a whole character.
    """
    text = b""
    while True:
        while len(text) < size and (more := stream.read(size - len(text))):
            text += more
        if len(text) < size:  # the end of the file
            break
        end = _end_of_piece(text)
        yield text[:end]
        text = text[end:]
    if text:
        yield text


def _end_of_piece(text: bytes) -> int:
    half = len(text) // 2
    for separator in (b"\n", b" "):
        if (at := text.rfind(separator, half)) >= 0:
            return at + 1
    for back in range(4):  # find the first byte of a UTF-8 character, which has at most 4 bytes
        if text[len(text) - 1 - back] & 0xC0 != 0x80:
            return _end_of_character(text, len(text) - 1 - back)
    return len(text)


def _end_of_character(text: bytes, start: int) -> int:
    """Return the end of the character at `start`, or `start` if the character is incomplete."""
    first = text[start]
    length = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
    return start + length if start + length <= len(text) else start
