"""Classification as text in T5's form, 'NAME FIELD: TEXT FIELD: TEXT' (Raffel et al. 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from fire_lm.tasks.suites.rows import BadRecord, Record, Row, number, text


def of_idx(record: Record) -> str:
    """Return the number in a record's field `idx`, as a string."""
    return str(number(record, "idx"))


def label_text(record: Record, labels: tuple[str, ...]) -> str:
    """Return the text of a record's label, or '' if the label is unknown.

    The record may contain the label as a number, a name or a boolean.

    Raises:
      BadRecord: The value is not one of the labels.
    """
    value = record.get("label")
    if value is None or (value == -1 and not isinstance(value, bool)):
        return ""
    if isinstance(value, int) and 0 <= value < len(labels):
        return labels[value]
    if value in labels:
        return str(value)
    raise BadRecord(
        f"the field 'label' is {value!r:.40}: it must be a number from 0 to {len(labels) - 1} or "
        f"one of {', '.join(labels)}"
    )


def prompt(name: str, parts: list[tuple[str, str]]) -> str:
    """Return an input, which consists of the task's name and the fields with their text."""
    return " ".join([name, *(f"{field}: {content}" for field, content in parts)])


def labelled(
    record: Record, key: str, inputs: str, labels: tuple[str, ...], group: str = ""
) -> Row:
    """Return the row of a record that has a single label."""
    label = label_text(record, labels)
    answers = (label,) if label else ()
    return Row(key, key, inputs, label, answers, choices=labels, group=group)


@dataclasses.dataclass(frozen=True)
class LabelledRows:
    """A function that converts each record into one row.

    Attributes:
      name: The task's name, which begins each input.
      fields: The names of the record's fields, in the order of the input.
      labels: The labels, in the order of their numbers.
    """

    name: str
    fields: tuple[str, ...]
    labels: tuple[str, ...]

    def __call__(self, record: Record, training: bool) -> Iterator[Row]:
        inputs = prompt(self.name, [(field, text(record, field)) for field in self.fields])
        yield labelled(record, of_idx(record), inputs, self.labels)
