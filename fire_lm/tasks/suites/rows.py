"""Rows of text-to-text tasks, and typed access to the fields of official records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# An object of a JSON line, or an example of TFDS with its text decoded.
Record = Mapping[str, Any]


class BadRecord(ValueError):
    """A record whose form differs from its data set's: a field is missing or has another type."""


class Unfit(ValueError):
    """A record of the right form that cannot be used; the message is a reason to count by."""


@dataclasses.dataclass(frozen=True)
class Row:
    """An input and its answer.

    Attributes:
        key: A key that no other row of the split has.
        id: The id of the question; rows that differ only in their answer share it.
        inputs: What the model reads.
        targets: An answer that scores 100; '' if none is known.
        answers: What predictions are scored by, usually all right answers; () if none is known.
        choices: All possible answers, to be ranked; () if the answer is free.
        group: The rows that are scored together; the id if the row is scored alone.
    """

    key: str
    id: str
    inputs: str
    targets: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.id)


def text(record: Record, field: str) -> str:
    """Return a field that is a string.

    Raises:
        BadRecord: There is no such field, or it is not a string.
    """
    value = _field(record, field)
    if not isinstance(value, str):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a string")
    return value


def number(record: Record, field: str) -> int:
    """Return a field that is a whole number.

    Raises:
        BadRecord: There is no such field, or it is not a whole number.
    """
    value = _field(record, field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a whole number")
    return value


def texts(record: Record, field: str) -> tuple[str, ...]:
    """Return a field that is a list of strings.

    Raises:
        BadRecord: There is no such field, or it is not a list of strings.
    """
    value = _field(record, field)
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a list of strings")
    return tuple(value)


def child(record: Record, field: str) -> Record:
    """Return a field that is an object.

    Raises:
        BadRecord: There is no such field, or it is not an object.
    """
    value = _field(record, field)
    if not isinstance(value, Mapping):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not an object")
    return value


def children(record: Record, field: str) -> Sequence[Record]:
    """Return a field that is a list of objects.

    Raises:
        BadRecord: There is no such field, or it is not a list of objects.
    """
    value = _field(record, field)
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a list of objects")
    return value


def _field(record: Record, field: str) -> Any:
    if field not in record:
        found = ", ".join(map(repr, list(record)[:8])) or "none"
        raise BadRecord(f"there is no field {field!r}, only {found}")
    return record[field]


def _kind(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
