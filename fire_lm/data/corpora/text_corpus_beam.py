"""Apache Beam transforms that count and select documents, with one Beam element per file.

The selected documents, their sources and their splits are identical to those that
`text_selection.choose` yields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from etils import epath

from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.corpora.bucket_file import open_binary
from fire_lm.data.corpora.text_files import File, read_file
from fire_lm.data.corpora.text_pieces import SplitOn
from fire_lm.data.corpora.text_selection import Counts, digest_of, key_of, split_of, unfit
from fire_lm.storage import make_folder


class Reading(NamedTuple):
    """The files that `list_files` returned and the settings with which to read them."""

    files: Sequence[File]
    text_field: str | None
    validation_percent: float
    split_on: SplitOn | None = None


class Located(NamedTuple):
    """A document; `order` consists of the file's number and the document's number in the file."""

    order: tuple[int, int]
    place: str
    text: bytes


def count(
    workers: BeamWorkers, reading: Reading, splits: Sequence[str], folder: epath.Path
) -> Counts:
    """Count all documents on the workers, which return the sums through a file in `folder`."""
    make_folder(folder)
    result = folder / "counts.json"
    with workers.pipeline() as pipeline:
        (
            pipeline
            | _documents(reading)
            | beam.MapTuple(
                lambda digest, document: (digest, (len(document.text), unfit(document.text)))
            )
            | beam.GroupByKey()
            | beam.FlatMap(_tally, reading.validation_percent)
            | beam.CombinePerKey(sum)
            | beam.combiners.ToList()
            | beam.Map(lambda sums: result.write_text(json.dumps(sums)))
        )
    counts = Counts.none(splits)
    for (kind, name), total in json.loads(result.read_text()):
        getattr(counts, kind)[name] = total
    result.unlink()
    return counts


def examples(reading: Reading, split: str) -> beam.PTransform:
    """Return a transform that produces the TFDS examples of one split.

    Only the first of several documents with identical text is kept.
    """
    return (
        _documents(reading)
        | beam.Filter(
            lambda each: (
                split_of(each[0], reading.validation_percent) == split
                and unfit(each[1].text) is None
            )
        )
        | beam.GroupByKey()
        | beam.Map(_first)
    )


def _documents(reading: Reading) -> beam.PTransform:
    """Return a transform that produces all documents, each paired with the hash of its text."""
    files = [(n, file.name, str(file.path)) for n, file in enumerate(reading.files)]
    return (
        beam.Create(files)
        | beam.Reshuffle()
        | beam.FlatMap(_read, reading.text_field, reading.split_on)
    )


def _read(
    file: tuple[int, str, str], text_field: str | None, split_on: SplitOn | None
) -> Iterator[tuple[bytes, Located]]:
    order, name, path = file
    with open_binary(epath.Path(path)) as stream:
        for number, (place, text) in enumerate(read_file(name, stream, text_field, split_on)):
            yield digest_of(text), Located((order, number), place, text)


def _tally(
    equal: tuple[bytes, Iterable[tuple[int, str | None]]], validation_percent: float
) -> Iterator[tuple[tuple[str, str], int]]:
    digest, copies = equal
    (size, problem), *others = copies
    if problem is not None:
        yield ("left_out", problem), 1 + len(others)
        return
    split = split_of(digest, validation_percent)
    yield ("documents", split), 1
    yield ("bytes", split), size
    if others:
        yield ("left_out", "duplicate"), len(others)


def _first(equal: tuple[bytes, Iterable[Located]]) -> tuple[str, dict[str, Any]]:
    digest, copies = equal
    first = min(copies)
    return key_of(digest), {"text": first.text, "source": first.place}
