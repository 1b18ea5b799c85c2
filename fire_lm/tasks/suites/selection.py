"""The selection of the usable rows of a split.

Skipped rows are counted, so that no row is lost silently. A training row is a question with one of
its answers; a row of any other split is a question with all its answers. Rows are read twice, so
that they need not be kept in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator

from fire_lm.errors import RunFailed
from fire_lm.tasks.suites.rows import BadRecord, Record, Row, Unfit
from fire_lm.tasks.suites.text_task import Official

# A function that yields the location of each record, for messages, and a function that yields the
# record's rows and may raise an error.
Source = Callable[[], Iterator[tuple[str, Callable[[], Iterator[Row]]]]]
# A function that yields the location of each record, for messages, and the record.
Records = Callable[[], Iterator[tuple[str, Record]]]

LONGEST_INPUT = 2**24  # characters


def rows_of(origin: Official, split: str, read: Records) -> Source:
    """Return a source that yields the rows of official records.

    Reading the source raises RunFailed for a record that `origin.flat` rejects.
    """

    def source() -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
        for place, record in read():
            try:
                for flat in origin.flat(record):
                    yield place, functools.partial(origin.rows, flat, split == "train")
            except BadRecord as error:
                raise RunFailed(f"{place}: {error}") from error

    return source


@dataclasses.dataclass
class LeftOut:
    """The number of rows skipped for one reason, and the location of the first such row."""

    count: int
    first: str


class _Question:
    """The distinct answers to a question, in the order of their rows' keys."""

    def __init__(self, key: str):
        self.key = key
        self._by_place: dict[tuple[str, int], str] = {}

    def add(self, row: Row) -> None:
        self.key = min(self.key, row.key)
        self._by_place |= {(row.key, place): answer for place, answer in enumerate(row.answers)}

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._by_place[place] for place in sorted(self._by_place)))


class Selection:
    """The selected rows of a split, which can be read repeatedly.

    Attributes:
      count, size: The number of selected rows and the number of characters in these rows; set by
        `survey`.
      left_out: The skipped rows by reason; set by `survey`.
    """

    def __init__(self, name: str, source: Source):
        self.name, self._source = name, source
        self.count = self.size = 0
        self.left_out: dict[str, LeftOut] = {}
        self._questions: dict[str, _Question] = {}

    def survey(self) -> None:
        """Count the rows and collect the answers to each question."""
        for row in self._fit(self.left_out):
            if self.name == "train" or row.id not in self._questions:
                self.count += 1
                self.size += len(row.inputs) + len(row.targets)
            if self.name != "train":
                question = self._questions.setdefault(row.id, _Question(row.key))
                question.add(row)

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yield pairs of key and row: all training rows, or one row per question in other splits.

        The yielded key is `row.key` for a training row and `row.id` in other splits. The row of a
        question is the row with the smallest `key`, regardless of the order in which rows are read,
        and receives all answers to the question.
        """
        for row in self._fit({}):
            if self.name == "train":
                yield row.key, row
            elif row.key == self._questions[row.id].key:
                yield row.id, dataclasses.replace(row, answers=self._questions[row.id].answers)

    def _fit(self, left_out: dict[str, LeftOut]) -> Iterator[Row]:
        """Yield the usable rows, and count the other rows in `left_out`."""
        keys: set[str] = set()
        inputs: dict[str, bytes] = {}  # the hash of the input, by the id of the question

        def problem_of(row: Row) -> str | None:
            if (problem := unfit(row, needs_answer=self.name != "test")) is not None:
                return problem
            if row.key in keys:
                return "duplicated id"
            keys.add(row.key)
            digest = hashlib.sha256(row.inputs.encode()).digest()[:16]
            if self.name != "train" and inputs.setdefault(row.id, digest) != digest:
                return "another input with the same id"
            return None

        def leave_out(problem: str, place: str) -> None:
            left_out.setdefault(problem, LeftOut(0, place)).count += 1

        for place, rows in self._source():
            try:
                for row in rows():
                    if (problem := problem_of(row)) is None:
                        yield row
                    else:
                        leave_out(problem, place)
            except Unfit as error:
                leave_out(str(error), place)
            except BadRecord as error:
                raise RunFailed(f"{place}: {error}") from error


def unfit(row: Row, needs_answer: bool) -> str | None:
    """Return a short reason for skipping a row, or None if the row can be used."""
    if not row.id or not row.key:
        return "empty id"
    if needs_answer and not row.targets.strip():
        return "empty target"
    if len(row.inputs) > LONGEST_INPUT:
        return "huge input"
    try:
        for written in (row.key, row.id, row.inputs, row.targets, *row.answers, *row.choices):
            written.encode()
    except UnicodeEncodeError:
        return "not UTF-8"
    return None
