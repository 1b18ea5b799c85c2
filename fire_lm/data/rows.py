"""Rows by number: which tokens of the stream of documents each row of a construction holds.

Every row of every construction is one stretch of the stream, so that a table of rows is an array of
places, or none at all. Places are int64 offsets into the stream, R rows, D documents (the skipped
ones, which have no tokens, left out), n tokens in a row.
"""

from __future__ import annotations

import abc
import array
from collections.abc import Iterable

import numpy as np

from fire_lm.data.spec import Construction


class Rows(abc.ABC):
    """Rows of `length` tokens over a stream of `tokens` tokens.

    `ends` gives, stretch by stretch of the stream, where its documents end: int64 [d], not empty.

    Attributes:
        count: R.
        memory: bytes of the table.
        segmented: whether rows hold several documents that do not see each other.
    """

    count: int
    memory: int = 0
    segmented: bool = False

    @abc.abstractmethod
    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]): ...

    @abc.abstractmethod
    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, stop) of the rows with these numbers, each int64 [k]."""

    @abc.abstractmethod
    def complete_at(self, places: np.ndarray) -> np.ndarray:
        """How many rows a reader has given out that has read the stream up to each place, and
        does not know yet whether there is more."""

    def segment_starts(self, start: int, stop: int) -> np.ndarray:
        """The starts of segments within a row from start to stop, counted from its start."""
        del start, stop
        return np.zeros(0, np.int64)


class Concat(Rows):
    """The stream chopped into full rows: arithmetic. The tail shorter than a row is lost."""

    def __init__(self, length: int, tokens: int, ends: Iterable[np.ndarray]):
        del ends
        self._length, self.count = length, tokens // length

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return rows * self._length, (rows + 1) * self._length

    def complete_at(self, places: np.ndarray) -> np.ndarray:
        return places // self._length


class Cut(Rows):
    """Each document in rows of its own. 8 bytes a row, 16 while the table is made."""

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


class Packed(Rows):
    """Parts of documents laid into a row while they fit (next-fit). 8 bytes a row and a document.

    A row begins with a part. A part that continues a document follows one of n tokens, which fills
    a row, so that within a row segments begin where documents do.
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

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._edges[rows], self._edges[rows + 1]

    def complete_at(self, places: np.ndarray) -> np.ndarray:
        """A row is given out when the part after it has come; the last one never by this."""
        return np.searchsorted(self._edges[1:-1], places, "left")

    def segment_starts(self, start: int, stop: int) -> np.ndarray:
        first, last = np.searchsorted(self._documents, [start + 1, stop])
        return self._documents[first:last] - start


class LongDocuments(Rows):
    """The first n tokens of documents with n or more. 16 bytes a row."""

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
    """(starts, stops) of the parts of at most `length` tokens of the documents between offsets."""
    counts = -(-np.diff(offsets) // length)
    first = np.cumsum(counts) - counts  # the number of each document's first part
    within = np.arange(counts.sum()) - np.repeat(first, counts)
    starts = np.repeat(offsets[:-1], counts) + within * length
    return starts, np.append(starts[1:], offsets[-1])


def _next_fit(edges: array.array[int], starts: np.ndarray, stops: np.ndarray, length: int) -> None:
    """Append where new rows begin among these parts; the last of `edges` is that of the open row.

    For every part, the first one that does not fit into a row begun by it is found at once; only
    the walk from row to row is one by one.
    """
    if not len(starts):
        return
    after = np.searchsorted(stops, starts + length, "right").tolist()
    part = int(np.searchsorted(stops, edges[-1] + length, "right"))
    while part < len(after):
        edges.append(int(starts[part]))
        part = after[part]
