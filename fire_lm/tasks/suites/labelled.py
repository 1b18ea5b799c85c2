"""Classification as text, in T5's form (Raffel et al. 2020): 'NAME FIELD: TEXT FIELD: TEXT'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from fire_lm.tasks.suites.rows import BadRecord, Record, Row, number, text


def of_idx(record: Record) -> str:
    """Return the number of a record."""
    return str(number(record, "idx"))


def label_text(record: Record, labels: tuple[str, ...]) -> str:
    """Return the label of a record, given as a number, name or boolean; '' if it has none.

    Raises:
        BadRecord: It is none of the labels.
    """
    value = record.get("label")
    if value is None or (value == -1 and not isinstance(value, bool)):
        return ""
    if isinstance(value, int) and 0 <= value < len(labels):
        return labels[value]
    if value in labels:
        return str(value)
    raise BadRecord(
        f"the field 'label' is {value!r:.40}, not one of {', '.join(labels)} or its number"
    )


def prompt(name: str, parts: list[tuple[str, str]]) -> str:
    """Return the input: the task's name, then each field with its text."""
    return " ".join([name, *(f"{field}: {content}" for field, content in parts)])


def labelled(
    record: Record, key: str, inputs: str, labels: tuple[str, ...], group: str = ""
) -> Row:
    """Return the row of a record with one label."""
    label = label_text(record, labels)
    answers = (label,) if label else ()
    return Row(key, key, inputs, label, answers, choices=labels, group=group)


@dataclasses.dataclass(frozen=True)
class LabelledRows:
    """Makes one row of each record.

    Attributes:
        name: The name with which inputs begin.
        fields: The fields of the record, in the order of the input.
        labels: The labels, in the order of their numbers.
        key: Returns the key of a record.
    """

    name: str
    fields: tuple[str, ...]
    labels: tuple[str, ...]
    key: Callable[[Record], str] = of_idx

    def __call__(self, record: Record, training: bool) -> Iterator[Row]:
        inputs = prompt(self.name, [(field, text(record, field)) for field in self.fields])
        yield labelled(record, self.key(record), inputs, self.labels)
