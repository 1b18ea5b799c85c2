"""Writing the data set of a task as TFDS, completely or not at all."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from fire_lm.data.corpora.tfds_writer import write_dataset
from fire_lm.data.quiet_tensorflow import tf
from fire_lm.errors import UserError, first_line
from fire_lm.tasks.suites.selection import LeftOut, Selection, Source

VERSION = "1.0.0"
# The version of the conversion into rows. Data sets of another version are refused.
FORMAT = 1
_TEXTS, _LISTS = ("id", "group", "inputs", "targets"), ("answers", "choices")

_FILES, _FILE_BYTES, _MOST_FILES = 32, 2**27, 1024


@dataclasses.dataclass(frozen=True)
class Written:
    """The data set that was written.

    Attributes:
        name: The name of the data set; the seqio task is `fire_lm:NAME`.
        rows: The number of rows by split.
        left_out: The omitted rows by split and reason.
        written: False if the data set already existed, from the same files.
    """

    name: str
    rows: dict[str, int]
    left_out: dict[str, dict[str, LeftOut]]
    written: bool


def write_task(
    name: str, data_dir: str, splits: Mapping[str, Source], identity: Mapping[str, Any]
) -> Written:
    """Write DATA_DIR/NAME/1.0.0, completely or not at all, unless it exists.

    Args:
        name: The name of the data set.
        data_dir: A TFDS data directory.
        splits: The rows of `train`, `validation` and other splits; `test` needs no answers.
        identity: What distinguishes the origin of the rows from others, as JSON.

    Raises:
        UserError: If a split is missing or empty, or the data set exists from another origin.
        RunFailed: If a record has another form, or a file is damaged.
    """
    identity = json.loads(json.dumps({"format": FORMAT, "task": name, **identity}))
    target = epath.Path(data_dir) / name / VERSION
    if (held := _held(target, name, identity)) is not None:
        return held
    for needed in ("train", "validation"):
        if needed not in splits:
            raise UserError(
                f"{name} has no split {needed!r}, only {', '.join(splits) or 'none'}: models are "
                "finetuned on 'train' and chosen on 'validation'"
            )
    chosen = {split: Selection(split, source) for split, source in splits.items()}
    for split in chosen.values():
        split.survey()
        if not split.count:
            told = ", ".join(f"{one.count} {why}" for why, one in split.left_out.items())
            raise UserError(
                f"there are no rows for the split {split.name!r} of {name} "
                f"(omitted: {told or 'none'})"
            )
    written = Written(
        name,
        {split.name: split.count for split in chosen.values()},
        {split.name: split.left_out for split in chosen.values()},
        written=True,
    )
    files = max(_FILES, sum(split.size for split in chosen.values()) // _FILE_BYTES)
    try:
        write_dataset(
            data_dir,
            name,
            VERSION,
            _TEXTS,
            {split.name: functools.partial(_examples, split) for split in chosen.values()},
            files=min(files, _MOST_FILES, *written.rows.values()),
            lists=_LISTS,
            metadata={"identity": identity, **dataclasses.asdict(written)},
        )
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"Cannot write {name} in {data_dir}: {reason}") from error
    return written


def _examples(split: Selection) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the keys and examples of TFDS."""
    for key, row in split.rows():
        yield key, {name: getattr(row, name) for name in (*_TEXTS, *_LISTS)}


def _held(target: epath.Path, name: str, identity: Mapping[str, Any]) -> Written | None:
    """Return the existing data set if it has the same origin, or None if there is none.

    Raises:
        UserError: If the data set has another origin.
    """
    if not target.exists():
        return None
    try:
        held = json.loads((target / "metadata.json").read_text())
        if held["identity"] == identity:
            left_out = {
                split: {why: LeftOut(**one) for why, one in reasons.items()}
                for split, reasons in held["left_out"].items()
            }
            return Written(name, held["rows"], left_out, written=False)
        problem = "was written from other files or settings"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        problem = "was not written by `fire-lm corpus tasks`"
    raise UserError(f"{target} {problem}: choose another --data_dir, or remove that folder")
