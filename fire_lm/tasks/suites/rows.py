"""Rows of text-to-text tasks, and typed access to the fields of official records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

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


# Each of the following functions returns the value of a field, which must be of a certain type, and
# raises BadRecord if the field is missing or its value is of another type.


def text(record: Record, field: str) -> str:
    value = _field(record, field)
    return value if isinstance(value, str) else _refuse(field, value, "a string")


def number(record: Record, field: str) -> int:
    value = _field(record, field)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole else _refuse(field, value, "a whole number")


def texts(record: Record, field: str) -> tuple[str, ...]:
    value = _field(record, field)
    listed = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return tuple(value) if listed else _refuse(field, value, "a list of strings")


def child(record: Record, field: str) -> Record:
    value = _field(record, field)
    return value if isinstance(value, Mapping) else _refuse(field, value, "an object")


def children(record: Record, field: str) -> Sequence[Record]:
    value = _field(record, field)
    listed = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if listed else _refuse(field, value, "a list of objects")


def _field(record: Record, field: str) -> Any:
    if field not in record:
        fields = ", ".join(map(repr, list(record)[:8])) or "none"
        raise BadRecord(f"there is no field {field!r} (existing fields: {fields})")
    return record[field]


def _refuse(field: str, value: object, kind: str) -> NoReturn:
    actual = "null" if value is None else f"of type {type(value).__name__}"
    raise BadRecord(f"the field {field!r} is {actual}, not {kind}")
