"""A reader of the official data sets of tasks: JSON Lines files, zip files or TFDS data sets.

A source is a folder. For a data set called FOLDER (such as `qasper`), the source contains
FOLDER/train.jsonl and the files of the other splits, FOLDER.zip with the same files, or the output
of `tfds build`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import numpy as np
from etils import epath

from fire_lm.data.on_the_fly import metadata
from fire_lm.data.on_the_fly.source import Source, reading, with_options
from fire_lm.data.quiet_tensorflow import tf, without_their_warnings
from fire_lm.data.spec import DataSet
from fire_lm.errors import RunFailed, UserError, first_line
from fire_lm.storage import children, place
from fire_lm.tasks.suites.rows import Record
from fire_lm.tasks.suites.selection import Records
from fire_lm.tasks.suites.text_task import SPLIT_FILES, Official


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """An official data set in a source.

    Attributes:
      place: The location of the data set, for use in messages.
      identity: Values that distinguish this data set from others: the names of its files with
        their checksums or with their sizes and modification times, or, for TFDS, the sizes of
        its splits.
      splits: A function for each split, keyed by fire_lm's name for the split, that reads the
        split's records.
    """

    place: str
    identity: list[list[Any]]
    splits: Mapping[str, Records]


def find(official: Official, source: str) -> RecordSet | None:
    """Return the official data set in a source, or None if the source does not contain it.

    The data set may be a folder of JSON Lines files, a zip file or a TFDS data set.

    Raises:
      UserError: The source does not exist or cannot be read.
      RunFailed: A zip file is incomplete.
    """
    top = place(source)
    try:
        if not top.exists():
            raise UserError(f"the source {source} does not exist: set --source=FOLDER")
        if top.name in (official.folder, f"{official.folder}.zip"):  # the source is the data set
            top = top.parent
        if (folder := top / official.folder).is_dir() and (records := _in_folder(folder)):
            return records
        if (archive := top / f"{official.folder}.zip").exists():
            return _in_zip(archive)
        return _of_tfds(official, str(top))
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"Cannot read {source}: {first_line(error)}") from error


def _in_folder(folder: epath.Path) -> RecordSet | None:
    files = {
        split: file
        for split, names in SPLIT_FILES.items()
        if (file := next((f for n in names if (f := folder / f"{n}.jsonl").exists()), None))
    }

    def reader(file: epath.Path) -> Records:
        return lambda: _json_lines(f"{folder.name}/{file.name}", lambda: file.open("rb"))

    if not files:
        return None
    status = [(file.name, file.stat()) for file in files.values()]
    identity = [[name, each.length, int(each.mtime or 0)] for name, each in status]
    return RecordSet(str(folder), identity, {split: reader(file) for split, file in files.items()})


def _in_zip(path: epath.Path) -> RecordSet:
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            checksums = {member.filename: member.CRC for member in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise RunFailed(
            f"{path} is not a complete zip file ({first_line(error)}): download it again"
        ) from error
    members = {
        split: member
        for split, names in SPLIT_FILES.items()
        if (member := next((m for n in names for m in checksums if _is_member(m, n)), None))
    }

    def reader(member: str) -> Records:
        @contextlib.contextmanager
        def opened() -> Iterator[IO[bytes]]:
            with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
                with archive.open(member) as inside:
                    yield inside

        return lambda: _json_lines(f"{path.name}/{member}", opened)

    identity = [[member, checksums[member]] for member in members.values()]
    return RecordSet(
        str(path), identity, {split: reader(member) for split, member in members.items()}
    )


def _is_member(path: str, name: str) -> bool:
    """Return whether a path in an archive is the file of a split, not a file that macOS added."""
    parts = path.split("/")
    return parts[-1] == f"{name}.jsonl" and not any(part.startswith(("__", ".")) for part in parts)


def _json_lines(
    name: str, opened: Callable[[], contextlib.AbstractContextManager[IO[bytes]]]
) -> Iterator[tuple[str, Record]]:
    """Yield the location and the content of each record in a JSON Lines file.

    Raises:
      RunFailed: A line is not a JSON object, or the file is damaged. The message states the line.
    """
    number = 0
    try:
        with opened() as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f"{name} line {number}", _object(line)
    except (ValueError, RecursionError) as error:
        raise RunFailed(
            f"{name} line {number} is not a JSON object: {first_line(error)}"
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = first_line(error)
        raise RunFailed(f"{name} line {number + 1}: the file is damaged ({why})") from error


def _object(line: bytes) -> Record:
    record = json.loads(line.decode("utf-8-sig"))
    if not isinstance(record, dict):
        raise ValueError(f"its type is {type(record).__name__}")
    return record


def _of_tfds(official: Official, source: str) -> RecordSet | None:
    names = [
        f"{builder}:{version}"
        for builder in official.tfds_names
        for version in _versions(epath.Path(source) / builder)
    ]
    if not names:
        return None
    data = DataSet(source, names[0])
    info = metadata.dataset_info(data)
    splits = {
        split: _examples(data, name)
        for split, own_names in SPLIT_FILES.items()
        if (name := next((n for n in own_names if n in info.splits), None))
    }
    identity = [
        [data.tfds_name, split, int(info.splits[split].num_examples)] for split in info.splits
    ]
    return RecordSet(f"{data.tfds_name} in {source}", identity, splits)


def _versions(builder: epath.Path) -> list[str]:
    """Return the versions of a data set, starting with the newest."""
    versions = [
        path.name
        for path in children(builder)
        if metadata.VERSION.fullmatch(path.name) and (path / "dataset_info.json").exists()
    ]
    return sorted(versions, key=lambda version: list(map(int, version.split("."))), reverse=True)


def _examples(data: DataSet, split: str) -> Records:
    def read() -> Iterator[tuple[str, Record]]:
        with without_their_warnings():
            examples = Source(data, split).get_dataset(split, shuffle=False)
        examples = with_options(examples, symbolic=False)
        with reading(data):
            for number, example in enumerate(examples.as_numpy_iterator(), start=1):
                yield f"{data.tfds_name} {split} example {number}", _plain(example)

    return read


def _plain(value: Any) -> Any:
    """Convert a TFDS example to the built-in Python types that a JSON line would yield."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, np.ndarray):
        return [_plain(part) for part in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value
