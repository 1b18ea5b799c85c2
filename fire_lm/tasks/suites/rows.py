"""Rows of text-to-text tasks, and typed access to the fields of official records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# An object from a JSON Lines file, or an example from TFDS with decoded text.
Record = Mapping[str, Any]


class BadRecord(ValueError):
    """An error for a record in which a field is missing or has an unexpected type or value."""


class Unfit(ValueError):
    """An error for a well-formed record that cannot be used; skips are counted by message."""


@dataclasses.dataclass(frozen=True)
class Row:
    """An input with its answer.

    Attributes:
      key: A key that is unique within the split.
      id: The id of the question; rows that differ only in their answer share an id.
      inputs: The text that the model reads.
      targets: An answer that scores 100; '' if no answer is known.
      answers: The texts against which predictions are scored, usually all correct answers; () if
        no answer is known.
      choices: All possible answers, which can be ranked; () if the answer is free text.
      group: The name of the group of rows that are scored together; by default, the id.
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
    """Return the value of a field, which must be a string.

    Raises:
      BadRecord: The field is missing or is not a string.
    """
    value = _field(record, field)
    if not isinstance(value, str):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a string")
    return value


def number(record: Record, field: str) -> int:
    """Return the value of a field, which must be a whole number.

    Raises:
      BadRecord: The field is missing or is not a whole number.
    """
    value = _field(record, field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a whole number")
    return value


def texts(record: Record, field: str) -> tuple[str, ...]:
    """Return the value of a field, which must be a list of strings.

    Raises:
      BadRecord: The field is missing or is not a list of strings.
    """
    value = _field(record, field)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a list of strings")
    return tuple(value)


def child(record: Record, field: str) -> Record:
    """Return the value of a field, which must be an object.

    Raises:
      BadRecord: The field is missing or is not an object.
    """
    value = _field(record, field)
    if not isinstance(value, Mapping):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not an object")
    return value


def children(record: Record, field: str) -> Sequence[Record]:
    """Return the value of a field, which must be a list of objects.

    Raises:
      BadRecord: The field is missing or is not a list of objects.
    """
    value = _field(record, field)
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a list of objects")
    return value


def _field(record: Record, field: str) -> Any:
    if field not in record:
        fields = ", ".join(map(repr, list(record)[:8])) or "none"
        raise BadRecord(f"there is no field {field!r} (existing fields: {fields})")
    return record[field]


def _kind(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
