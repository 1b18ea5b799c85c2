"""A digest of the files that a reader reads, which identifies their text wherever they are stored.

A run must not resume on text that has been rewritten under the same name, and counts of documents
cannot reveal this. A file is read completely if it has at most 64 MiB divided by the number of the
data set's files. Of larger files, such as those of C4, only half of that is read from each end, so
that a start takes seconds even in a bucket. In a TFRecord file, the ends contain the length and the
CRC-32C of the first and the last documents.
"""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fire_lm.data.on_the_fly.source import of_shard, reading
from fire_lm.data.quiet_tensorflow import seqio, without_their_warnings
from fire_lm.errors import RunFailed, reason
from fire_lm.storage import read_ends

if TYPE_CHECKING:
    from fire_lm.data.kinds.by_seqio import BySeqio

KEY = "text digest"  # the name of the digest in a saved position
# The maximum number of bytes to read of all files of a data set, and the minimum of each end.
_BYTES, _LEAST = 2**26, 2**10
_READERS = 32  # the number of files that are read concurrently


def text_digest(data: BySeqio, split: str, shard: seqio.ShardInfo | None) -> str:
    """Return a digest of the text that one shard reads, or "" if the text is not read from files.

    Raises:
      RunFailed: A file cannot be read.
    """
    with reading(data), without_their_warnings():
        sources = data.reader.files(data, split)
    if not any(sources):
        return ""
    digest = hashlib.sha256()
    for files in sources:
        count = max(_LEAST, _BYTES // max(1, 2 * len(files)))
        read = functools.partial(read_ends, count=count)
        paths = of_shard(files, shard)
        try:
            with ThreadPoolExecutor(_READERS) as pool:
                for path, ends in zip(paths, pool.map(read, paths), strict=True):
                    if ends is None:
                        raise RunFailed(f"{path}: the file does not exist")
                    digest.update(hashlib.sha256(ends).digest())
        except (OSError, RunFailed) as error:
            raise RunFailed(f"Reading {data.where} failed: {reason(error)}") from error
    return digest.hexdigest()
