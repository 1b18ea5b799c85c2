"""Writes documents as a TFDS data set that reads back exactly as C4 does."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping

from fire_lm.data.corpora.tfds_writer import Example, write_dataset

# Many small files: the seed's order of files decides what a short run reads, and several
# processes each get files of their own.
_MAX_FILES_PER_SPLIT = 32
_FIELDS = ("text", "url", "content-type", "content-length", "timestamp")


def write(data_dir: str | os.PathLike, splits: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write `c4/en/3.1.0` below `data_dir`.

    Args:
        data_dir: a TFDS data dir; made if missing.
        splits: document by path, by split; no split may be empty.
    """

    def examples(texts: Mapping[str, bytes]) -> Iterator[Example]:
        for path, content in texts.items():
            values = (content, path, "text/plain", str(len(content)), "1970-01-01T00:00:00Z")
            yield path, dict(zip(_FIELDS, values, strict=True))

    write_dataset(
        data_dir,
        "c4",
        "3.1.0",
        _FIELDS,
        {split: functools.partial(examples, texts) for split, texts in splits.items()},
        files=min(_MAX_FILES_PER_SPLIT, *(len(texts) for texts in splits.values())),
        config="en",
    )
