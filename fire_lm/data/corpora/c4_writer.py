"""A writer of documents as a TFDS data set with the schema and the name of C4."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping

from fire_lm.data.corpora.tfds_writer import Example, write_dataset

# A split has many small files; see `tfds_writer`.
_MAX_FILES_PER_SPLIT = 32
_FIELDS = ("text", "url", "content-type", "content-length", "timestamp")


def write(data_dir: str | os.PathLike, splits: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write documents as the data set `c4/en/3.1.0` in `data_dir`.

    Args:
      data_dir: A TFDS data directory, which is created if it does not exist.
      splits: A mapping from each split's name to the split's documents, keyed by path. No split
        may be empty.
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
        files=min(_MAX_FILES_PER_SPLIT, *map(len, splits.values())),
        config="en",
    )
