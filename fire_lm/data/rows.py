"""Random access to rows: the span of the document stream that each row of a construction covers.

Every row of every construction is one contiguous span of the stream, so a table of rows consists of
arrays of positions, or is not needed at all. Positions are int64 offsets into the stream. R is the
number of rows, and n is the number of tokens in a row. Skipped documents have no tokens and are not
counted.
"""

from __future__ import annotations

import abc
import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from fire_lm.data.spec import CONSTRUCTIONS, Construction
from fire_lm.errors import UserError


def check_arrangement(data: Any, length: int) -> None:
    """Raise UserError if the `construction` of data cannot make rows of this length."""
    check_length(length)
    if data.construction not in CONSTRUCTIONS:
        raise UserError(
            f"{type(data).__name__}.construction is {data.construction!r}: "
            f"it must be one of {', '.join(CONSTRUCTIONS)}"
        )


def check_length(length: int) -> None:
    """Raise UserError if a row of `length` tokens is too short to predict a token."""
    if length < 2:
        raise UserError(f"A row needs at least 2 tokens; the requested length is {length}")


class Rows(abc.ABC):
    """The rows of `length` tokens into which a construction arranges a stream of `tokens` tokens.

    For each consecutive part of the stream, `ends` yields a non-empty int64 [d] array of the
    positions at which the part's documents end.

    Attributes:
      count: The number of rows, R.
      memory: The size of the table of rows in bytes.
      segmented: Whether a row may contain several documents that do not attend to each other.
    """

    count: int
    memory: int = 0
    segmented: bool = False

    @abc.abstractmethod
    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]): ...

    @abc.abstractmethod
    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and stop positions, each int64 [k], of the rows with these numbers."""

    @abc.abstractmethod
    def complete_at(self, places: np.ndarray) -> np.ndarray:
        """Return, for each position, the number of rows that are complete if reading stops there.

        At that point, it is unknown whether the stream continues.
        """

    def segment_starts(self, start: int, stop: int) -> np.ndarray:
        """Return the starts of all segments but the first in the row from `start` to `stop`.

        The starts are int64 [segments - 1] and relative to the start of the row.
        """
        del start, stop
        return np.zeros(0, np.int64)


class Concat(Rows):
    """Full rows of the whole stream, located without a table; a final partial row is dropped."""

    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]):
        del ends
        self._length, self.count = length, tokens // length

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return rows * self._length, (rows + 1) * self._length

    def complete_at(self, places: np.ndarray) -> np.ndarray:
        return places // self._length


class Cut(Rows):
    """Rows that each contain tokens of only one document.

    The table takes 8 bytes per row, and 16 bytes per row while it is built.
    """

    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]):
        starts, begin = [], 0
        for part in ends:
            starts.append(_cut(np.concatenate([[begin], part]), length)[0])
            begin = int(part[-1])
        self._edges = np.concatenate([*starts, [tokens]])
        self.count, self.memory = len(self._edges) - 1, self._edges.nbytes

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._edges[rows], self._edges[rows + 1]

    def complete_at(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._edges[1:], places, "right")


class Packed(Cut):
    """Rows into which parts of documents are placed one after another while they fit (next-fit).

    The table takes 8 bytes per row and 8 bytes per document. Every row begins with the start of a
    part. A part that continues a document follows a part of n tokens, which fills a row by itself,
    so all later segments of a row begin at the start of a document.
    """

    segmented = True

    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]):
        edges, documents, begin = array.array("q", [0]), array.array("q"), 0
        for part in ends:
            offsets = np.concatenate([[begin], part])
            documents.frombytes(offsets[:-1].tobytes())
            begin = int(part[-1])
            _next_fit(edges, *_cut(offsets, length), length)
        if tokens:
            edges.append(tokens)
        self._documents, self._edges = (np.frombuffer(a, np.int64) for a in (documents, edges))
        self.count = len(self._edges) - 1
        self.memory = self._edges.nbytes + self._documents.nbytes

    def complete_at(self, places: np.ndarray) -> np.ndarray:
        """Return the number of complete rows at each position; see `Rows`.

        A row is complete once the first part that does not fit has arrived, so the last row never
        counts as complete.
        """
        return np.searchsorted(self._edges[1:-1], places, "left")

    def segment_starts(self, start: int, stop: int) -> np.ndarray:
        first, last = np.searchsorted(self._documents, [start + 1, stop])
        return self._documents[first:last] - start


class LongDocuments(Rows):
    """The first n tokens of every document that has at least n tokens.

    The table takes 16 bytes per row.
    """

    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]):
        del tokens
        starts, stops, begin = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        for part in ends:
            offsets = np.concatenate([[begin], part])
            long = np.diff(offsets) >= length
            starts.append(offsets[:-1][long])
            stops.append(offsets[1:][long])
            begin = int(part[-1])
        self._length = length
        self._starts, self._stops = np.concatenate(starts), np.concatenate(stops)
        self.count, self.memory = len(self._starts), self._starts.nbytes + self._stops.nbytes

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._starts[rows], self._starts[rows] + self._length

    def complete_at(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._stops, places, "right")


ROWS: dict[Construction, type[Rows]] = {
    "concat": Concat,
    "cut": Cut,
    "packed": Packed,
    "long_documents": LongDocuments,
}


def _cut(offsets: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Split documents into parts of at most `length` tokens and return the starts and stops."""
    counts = -(-np.diff(offsets) // length)
    first = np.cumsum(counts) - counts  # the index of each document's first part
    within = np.arange(counts.sum()) - np.repeat(first, counts)
    starts = np.repeat(offsets[:-1], counts) + within * length
    return starts, np.append(starts[1:], offsets[-1])


def _next_fit(edges: array.array[int], starts: np.ndarray, stops: np.ndarray, length: int) -> None:
    """Append to `edges` the start of each new row that begins with one of these parts.

    The last edge is the start of the open row, to which more parts may be added. For every part, a
    single vectorised search finds the first part that no longer fits into a row that starts with
    this part. Only the walk from row to row is sequential.
    """
    if not len(starts):
        return
    after = np.searchsorted(stops, starts + length, "right").tolist()
    part = int(np.searchsorted(stops, edges[-1] + length, "right"))
    while part < len(after):
        edges.append(int(starts[part]))
        part = after[part]
