"""The user's own documents, such as arXiv papers or GitHub files, as a TFDS data set.

A hash of a document's text determines its split. The split therefore depends neither on the order
of the documents nor on their distribution over files, and identical texts cannot be in different
splits. Exact duplicates are omitted and counted. TFDS hashes the hash again and orders the
documents of a split by the result.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from etils import epath

from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.corpora.embedded import MANIFEST
from fire_lm.data.corpora.text_files import (
    File,
    OnBytes,
    check_files,
    is_text,
    list_files,
    read_documents,
)
from fire_lm.data.corpora.text_pieces import SMALLEST, SplitOn, is_split_rule
from fire_lm.data.corpora.text_selection import Counts, choose, key_of
from fire_lm.data.corpora.tfds_writer import Example, number_of_files, record_of, write_dataset
from fire_lm.data.quiet_tensorflow import tfds
from fire_lm.data.spec import LONGEST_DOCUMENT
from fire_lm.errors import UserError
from fire_lm.storage import place

VERSION = "1.0.0"


@dataclasses.dataclass(frozen=True)
class TextCorpus:
    """A data set that was written or that already existed.

    Attributes:
      tfds_name: The value for `TextData.tfds_name`.
      documents: The number of documents in each split.
      bytes: The size of each split's text.
      left_out: The number of omitted documents for each reason.
      written: False if the data set already existed and was made from files with the same names,
        sizes and modification times.
    """

    tfds_name: str
    documents: dict[str, int]
    bytes: dict[str, int]
    left_out: dict[str, int]
    written: bool


def write_text_corpus(
    source: str,
    data_dir: str,
    name: str,
    *,
    text_field: str | None = "text",
    validation_percent: float = 6,
    split_on: SplitOn | None = None,
    on_bytes: OnBytes = lambda done, total: None,
    workers: BeamWorkers | None = None,
) -> TextCorpus:
    """Write the data set DATA_DIR/NAME/1.0.0, unless it was already written from the same files.

    The documents are read once for counting and then once for each split. If this process writes
    the data set, TFDS keeps up to 1 GB of documents in memory for shuffling.

    Args:
      source, text_field, split_on: See `read_documents`.
      data_dir: A local or gs:// TFDS data directory, which may contain other data sets.
      name: The name of the data set, in lower case.
      validation_percent: The percentage of documents in the validation split; 0 omits this split.
      on_bytes: See `read_documents`. It is not called if `workers` is given.
      workers: Beam workers, which read one file at a time and need access to `source` and
        `data_dir`. The data set then has the same documents, distributed differently over its
        files.

    Raises:
      UserError: The name is invalid, the existing data set was written from other files or with
        other settings, or a split would be empty. See also `read_documents`.
    """
    _check(data_dir, name, validation_percent)
    files, links = list_files(source)
    _check_split_on(split_on, files, text_field)
    settings = {
        "name": name,
        "text_field": text_field,
        "validation_percent": validation_percent,
        "files": [[file.name, file.size] for file in files],
        "split_on": split_on,
    }
    target = place(data_dir) / name / VERSION
    times = [file.modified for file in files]
    if (existing := _existing(target, settings, times)) is not None:
        return existing
    check_files(files, text_field)
    splits = ("train", "validation") if validation_percent else ("train",)
    if workers is None:
        counts, examples = _passes(
            source, text_field, validation_percent, splits, on_bytes, split_on
        )
    else:
        from fire_lm.data.corpora import text_corpus_beam

        reading = text_corpus_beam.Reading(files, text_field, validation_percent, split_on)
        counts = text_corpus_beam.count(workers, reading, splits, target.parent)
        examples = functools.partial(text_corpus_beam.examples, reading)
    if links:
        counts.leave_out("broken links", links)
    whole_files = split_on is None and any(is_text(file.name, "text") for file in files)
    counts.check(whole_files)
    record = settings | {"modified": times} | dataclasses.asdict(counts)
    with workers.failures() if workers else contextlib.nullcontext():
        write_dataset(
            *(data_dir, name, VERSION, ("text", "source")),
            {split: functools.partial(examples, split) for split in splits},
            files=number_of_files(sum(counts.bytes.values())),
            beam_options=workers.options() if workers else None,
            metadata=record,  # which appears together with the data
        )
    return TextCorpus(f"{name}:{VERSION}", **dataclasses.asdict(counts), written=True)


def _check(data_dir: str, name: str, validation_percent: float) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in tfds.list_builders(
        with_community_datasets=False
    ):
        raise UserError(
            f"--name {name} cannot be used: choose a name of lower-case letters, digits and _ that "
            "starts with a letter and is not the name of a data set in TFDS"
        )
    if not 0 <= validation_percent < 100:
        raise UserError(
            f"--validation_percent must be at least 0 and below 100, not {validation_percent}"
        )
    if (place(data_dir) / MANIFEST).exists():
        raise UserError(f"{data_dir} contains the embedded text: choose another --data_dir")


def _check_split_on(
    split_on: SplitOn | None, files: Sequence[File], text_field: str | None
) -> None:
    if split_on is None:
        return
    if not is_split_rule(split_on):
        raise UserError(
            f"--split_on={split_on} is neither blank_lines nor a number of bytes from {SMALLEST} "
            f"to {LONGEST_DOCUMENT}"
        )
    if text_field is None:
        raise UserError("--whole_files and --split_on cannot be combined: omit one of them")
    if not any(is_text(file.name, text_field) for file in files):
        raise UserError(
            "--split_on has no effect on JSON and Parquet files, where each record is a document: "
            "omit it"
        )


def _passes(
    source: str,
    text_field: str | None,
    validation_percent: float,
    splits: Sequence[str],
    on_bytes: OnBytes,
    split_on: SplitOn | None,
) -> tuple[Counts, Callable[[str], Iterator[Example]]]:
    """Count the documents in this process, and return how to read those of a split again."""
    begun = itertools.count()

    def chosen(split: str | None, counts: Counts) -> Iterator[tuple[bytes, str, bytes]]:
        before, passes = next(begun), 1 + len(splits)
        documents = read_documents(
            source,
            text_field,
            lambda done, total: on_bytes(done + before * total, passes * total),
            split_on,
        )
        return choose(documents, split, validation_percent, counts)

    def examples(split: str) -> Iterator[Example]:
        for digest, where, text in chosen(split, Counts.none(splits)):
            yield key_of(digest), {"text": text, "source": where}

    counts = Counts.none(splits)
    collections.deque(chosen(None, counts), maxlen=0)
    return counts, examples


def _existing(target: epath.Path, settings: dict, times: list[int]) -> TextCorpus | None:
    """Return the existing data set if it was made from the same files, or None if none exists.

    Files count as the same if their names, sizes and modification times are unchanged, because
    comparing their content would mean reading all of it.

    Raises:
      UserError: The existing data set differs or is incomplete, or the files may have changed.
    """
    record = record_of(target, "metadata.json") or record_of(target, MANIFEST)  # as once written
    if record is None:
        return None
    complete = {*settings, "documents", "bytes", "left_out"} <= record.keys()
    if not complete or any(record[key] != value for key, value in settings.items()):
        problem = (
            "was written from other files or with other settings"
            if complete
            else "was not written by `fire-lm corpus`"
        )
        raise UserError(f"{target} {problem}: choose another --name, or remove that folder")
    counts = {name: record[name] for name in ("documents", "bytes", "left_out")}
    summary = TextCorpus(f"{settings['name']}:{VERSION}", **counts, written=False)
    if record.get("modified") != times:
        raise UserError(
            f"{target} was written from files with the same names and sizes but different "
            "modification times\n"
            "if the files were only copied again, use the data set as it is "
            f"(--gin.TextData.tfds_name={summary.tfds_name}); "
            "otherwise choose another --name, or remove that folder"
        )
    return summary
