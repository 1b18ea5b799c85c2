"""A writer of task data sets in TFDS format. A data set is written completely or not at all."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from fire_lm.data.corpora.tfds_writer import number_of_files, record_of, write_dataset
from fire_lm.errors import UserError
from fire_lm.storage import place
from fire_lm.tasks.suites.selection import LeftOut, Selection, Source

VERSION = "1.0.0"
# The version of the conversion of records to rows. Every data set stores this version, and a data
# set of another version counts as a different data set.
FORMAT = 1
# The versions of tasks whose conversion has changed since.
_REVISIONS = {"glue_stsb": 2, "scrolls_quality": 2}
_TEXTS, _LISTS = ("id", "group", "inputs", "targets"), ("answers", "choices")


@dataclasses.dataclass(frozen=True)
class Written:
    """A data set that was written or that already existed.

    Attributes:
      name: The part of the seqio name after `fire_lm:`.
      rows: The number of rows in each split.
      left_out: The omitted records by split and reason.
      written: False if the data set already existed, with the same origin.
    """

    name: str
    rows: dict[str, int]
    left_out: dict[str, dict[str, LeftOut]]
    written: bool


def write_task(
    name: str, data_dir: str, splits: Mapping[str, Source], identity: Mapping[str, Any]
) -> Written:
    """Write a data set to DATA_DIR/NAME/1.0.0 atomically, unless it already exists.

    Args:
      splits: The sources of the splits, which must include `train` and `validation`. Rows of
        `test` need no answers.
      identity: The origin of the rows; the values must be JSON-serialisable.

    Raises:
      UserError: A split is missing or empty, the existing data set has another origin, or
        `data_dir` cannot be written.
      RunFailed: A record has an unexpected form, or a file is damaged.
    """
    identity = json.loads(
        json.dumps({"format": _REVISIONS.get(name, FORMAT), "task": name, **identity})
    )
    target = place(data_dir) / name / VERSION
    if (existing := _existing(target, name, identity)) is not None:
        return existing
    for needed in ("train", "validation"):
        if needed not in splits:
            raise UserError(
                f"{name} has no split {needed!r} (found: {', '.join(splits) or 'none'}): models "
                "are finetuned on 'train' and selected on 'validation'"
            )
    chosen = {split: Selection(split, source) for split, source in splits.items()}
    for split in chosen.values():
        split.survey()
        if not split.count:
            omitted = ", ".join(f"{rows.count} {why}" for why, rows in split.left_out.items())
            raise UserError(
                f"the split {split.name!r} of {name} has no usable row (omitted rows: "
                f"{omitted or 'none'})"
            )
    written = Written(
        name,
        {split.name: split.count for split in chosen.values()},
        {split.name: split.left_out for split in chosen.values()},
        written=True,
    )
    write_dataset(
        *(data_dir, name, VERSION, _TEXTS),
        {split.name: functools.partial(_examples, split) for split in chosen.values()},
        files=number_of_files(sum(split.size for split in chosen.values())),
        lists=_LISTS,
        metadata={"identity": identity, **dataclasses.asdict(written)},
    )
    return written


def _examples(split: Selection) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the TFDS example of each row in a split."""
    for key, row in split.rows():
        yield key, {name: getattr(row, name) for name in (*_TEXTS, *_LISTS)}


def _existing(target: epath.Path, name: str, identity: Mapping[str, Any]) -> Written | None:
    """Return the existing data set if it has the same origin, or None if no data set exists.

    Raises:
      UserError: The existing data set has another origin.
    """
    record = record_of(target, "metadata.json")
    if record is None:
        return None
    problem = "was not written by `fire-lm corpus tasks`"
    if {"identity", "rows", "left_out"} <= record.keys():
        if record["identity"] == identity:
            left_out = {
                split: {why: LeftOut(**omitted) for why, omitted in reasons.items()}
                for split, reasons in record["left_out"].items()
            }
            return Written(name, record["rows"], left_out, written=False)
        problem = "was written from other files or with other settings"
    raise UserError(f"{target} {problem}: choose another --data_dir, or remove that folder")
