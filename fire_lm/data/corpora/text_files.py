"""A reader of documents from plain text, JSON lines and Parquet files, on a disk or in a bucket.

Each JSON line and each Parquet row is a document. Any other file is a single document unless it is
split (see `text_pieces`). A compressed file has a name that ends in `.gz` or `.zst` after any other
suffix, such as `a.jsonl.gz`.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from fire_lm.data.corpora.bucket_file import open_binary
from fire_lm.data.corpora.text_pieces import SplitOn, split_text
from fire_lm.data.spec import LONGEST_DOCUMENT
from fire_lm.errors import RunFailed, UserError, first_line, reason
from fire_lm.storage import in_bucket, place

# The location of a document, such as `a.jsonl:1`, and its text. Of a text file or a piece of text,
# only slightly more than LONGEST_DOCUMENT bytes are read.
Document = tuple[str, bytes]
# A callback that receives the number of bytes read so far and the total.
OnBytes = Callable[[int, int], None]

_JSON = {".json", ".jsonl", ".ndjson"}
_PARQUET = {".parquet", ".pq"}
_COMPRESSED = {".gz", ".zst"}

# The first bytes of a file with each suffix. A Zstandard file may begin with a skippable frame.
_MAGIC = {".gz": rb"\x1f\x8b", ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"}
_PARQUET_MAGIC = rb"PAR[1E]"
_LFS = b"version https://git-lfs"


class File(NamedTuple):
    """A file to read.

    `name` is the path relative to the source. `modified` is the modification time in nanoseconds,
    or 0 if it is unknown.
    """

    name: str
    path: epath.Path
    size: int
    modified: int


def read_documents(
    source: str,
    text_field: str | None = "text",
    on_bytes: OnBytes = lambda done, total: None,
    split_on: SplitOn | None = None,
) -> Iterator[Document]:
    """Yield the documents of a file, or of all files below a folder in sorted order.

    Hidden files and folders are ignored.

    Args:
      source: A file or folder, which may be local or on gs://.
      text_field: The field of a JSON object or Parquet row that contains the text. A missing
        field is an error, and a null value is an empty text. With None, every file is a single
        document, whatever its suffix.
      on_bytes: A callback that is called after each document with the number of bytes read so far
        and the total.
      split_on: How to split a text file into several documents. With None, each text file is a
        single document.

    Raises:
      UserError: The source does not exist or contains no files, or the field is missing.
      RunFailed: A file is damaged. The message states the file and, if known, the line or row.
    """
    files, _ = list_files(source)
    total, before = sum(file.size for file in files), 0
    for name, path, size, _ in files:
        with open_binary(path) as file:
            for document in read_file(name, file, text_field, split_on):
                yield document
                on_bytes(before + (0 if file.closed else min(file.tell(), size)), total)
        before += size
    on_bytes(total, total)


def list_files(source: str) -> tuple[list[File], int]:
    """Return the files to read and the number of broken links, which are skipped.

    Source code repositories often contain broken links.

    Raises:
      UserError: The source does not exist, cannot be read or contains no files.
    """
    from fire_lm.data.quiet_tensorflow import tf

    top = place(source)
    try:
        if not source or not top.exists():
            raise UserError(f"The source {source!r} does not exist: set --from=FILE_OR_FOLDER")
        if not top.is_dir():
            return [_file(top.name, top)], 0
        paths = list(_walk(top))
        existing = [path for path in paths if not os.path.islink(path) or os.path.exists(path)]
        files = [_file(path.relative_to(top).as_posix(), path) for path in existing]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source} contains a file whose name is not UTF-8 ({error.object!r}): rename it"
        ) from error
    except (OSError, tf.errors.OpError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        raise UserError(f"Cannot read {source}: {why}") from error
    if not files:
        raise UserError(
            f"{source} contains no files, apart from hidden ones: set --from=FILE_OR_FOLDER"
        )
    return sorted(files), len(paths) - len(existing)


def _walk(top: epath.Path) -> Iterator[epath.Path]:
    """Yield all files below a folder except hidden files and the contents of hidden folders."""
    from fire_lm.data.quiet_tensorflow import tf

    if not in_bucket(top):
        yield from map(epath.Path, _walk_disk(os.fspath(top)))
        return
    for folder, folders, names in tf.io.gfile.walk(top.as_posix()):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = epath.Path(folder)
        yield from (inside / name for name in names if not name.startswith("."))


def _walk_disk(top: str) -> Iterator[str]:
    """Yield the files below a folder on a disk, where links may lead to folders.

    Each folder is read once, however many links lead to it, even from below. Links come last, so
    that a folder below `top` is found by its own name.
    """
    read: set[tuple[int, int]] = set()
    folders, links = collections.deque([top]), collections.deque[str]()
    while folders or links:
        folder = (folders or links).popleft()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in read:
            continue
        read.add((status.st_dev, status.st_ino))
        for name in sorted(os.listdir(folder)):
            if name.startswith("."):
                continue
            os.fsencode(name).decode()  # raises UnicodeDecodeError
            path = os.path.join(folder, name)
            if not os.path.isdir(path):
                yield path
            else:
                (links if os.path.islink(path) else folders).append(path)


def _file(name: str, path: epath.Path) -> File:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is a pipe, socket or device, not a file to read: remove it")
        return File(name, path, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        bucket_status = path.stat()
        return File(name, path, bucket_status.length, (bucket_status.mtime or 0) * 10**9)


def check_files(files: Sequence[File], text_field: str | None) -> None:
    """Raise RunFailed if the first bytes of any file do not match the file's suffix.

    A file that was not downloaded properly is thus reported immediately, and not only after hours
    of reading other files.
    """

    def check(file: File) -> None:
        if any(_form(file.name, text_field)):
            with open_binary(file.path) as stream:
                _check_beginning(file.name, stream, text_field)

    with ThreadPoolExecutor(16) as pool:  # because opening a file in a bucket is slow
        for _ in pool.map(check, files):
            pass


def is_text(name: str, text_field: str | None) -> bool:
    """Return whether a file is read as plain text and not as a sequence of records."""
    return not _form(name, text_field)[0]


def _check_beginning(name: str, file: BinaryIO, text_field: str | None) -> None:
    kind, compressed = _form(name, text_field)
    if not kind and not compressed:
        return
    begin = file.read(len(_LFS))
    file.seek(0)
    if not begin:
        raise RunFailed(f"{name} is empty (0 bytes): download it again, or remove it")
    if begin == _LFS:
        raise RunFailed(f"{name} is a Git LFS pointer, not the file itself: run `git lfs pull`")
    magic = _MAGIC.get(compressed) or (_PARQUET_MAGIC if kind in _PARQUET else b"")
    if not re.match(magic, begin):
        raise RunFailed(
            f"{name} does not begin like a {compressed or kind} file: download it again, or "
            "correct its suffix"
        )


def _form(name: str, text_field: str | None) -> tuple[str, str]:
    """Return the suffix of the record format (JSON or Parquet) and the suffix of the compression.

    Either suffix may be empty. The first suffix is empty if the file is read as plain text.
    """
    endings = [ending.lower() for ending in pathlib.PurePath(name).suffixes]
    compressed = endings.pop() if endings and endings[-1] in _COMPRESSED else ""
    kind = endings[-1] if endings else ""
    if text_field is None or kind not in _JSON | _PARQUET:
        kind = ""
    return kind, compressed


def read_file(
    name: str, file: BinaryIO, text_field: str | None, split_on: SplitOn | None = None
) -> Iterator[Document]:
    """Yield the documents of one file; see `read_documents`."""
    _check_beginning(name, file, text_field)
    kind, compressed = _form(name, text_field)
    if kind in _PARQUET:
        yield from _parquet(name, file, str(text_field))
        return
    with contextlib.closing(_decompressed(file, compressed)) as stream:
        if kind in _JSON:
            yield from _json_lines(name, stream, str(text_field))
        elif split_on is not None:
            with _damage(name):
                for number, piece in enumerate(split_text(stream, split_on), start=1):
                    yield f"{name}:{number}", piece
        else:
            with _damage(name):
                content = stream.read(LONGEST_DOCUMENT + 1)
            yield name, content


def _decompressed(file: BinaryIO, compressed: str) -> Any:
    if compressed == ".gz":
        return gzip.GzipFile(fileobj=file)
    if compressed == ".zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")
        return io.BufferedReader(stream, 2**20)
    return file


@contextlib.contextmanager
def _damage(place: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError, zlib.error) as error:
        why = first_line(error)
        raise RunFailed(f"{place}: the file is truncated or damaged ({why})") from error


def _json_lines(name: str, stream: Any, text_field: str) -> Iterator[Document]:
    number = 0
    while True:
        number += 1
        place = f"{name} line {number}"
        with _damage(place):
            line = stream.readline()
        if not line:
            return
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError:
            yield f"{name}:{number}", line  # omitted later, like a text file that is not UTF-8
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunFailed(
                f"{place} is not JSON ({error}): there must be one object per line"
            ) from error
        if not isinstance(record, dict):
            raise RunFailed(f"{place} is not a JSON object with a field {text_field!r}")
        if text_field not in record:
            raise _no_field(place, text_field, list(record))
        yield f"{name}:{number}", _text_of(place, record[text_field])


def _text_of(place: str, value: object) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str):
        raise RunFailed(f"{place}: the type of the text is {type(value).__name__}, not str")
    return value.encode(errors="surrogatepass")  # a lone surrogate is counted as not UTF-8


def _parquet(name: str, file: BinaryIO, text_field: str) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        table = parquet.ParquetFile(file, page_checksum_verification=True)
        if text_field not in table.schema_arrow.names:
            raise _no_field(name, text_field, table.schema_arrow.names)
        for batch in table.iter_batches(batch_size=256, columns=[text_field]):
            for value in _bytes_of(batch.column(0)).to_pylist():
                number += 1
                text = (
                    value if isinstance(value, bytes) else _text_of(f"{name} row {number}", value)
                )
                yield f"{name}:{number}", text
    except (pyarrow.ArrowException, OSError) as error:
        raise RunFailed(
            f"{name} row {number + 1}: the file is not a complete Parquet file "
            f"({first_line(error)})"
        ) from error


def _bytes_of(column: Any) -> Any:
    """Convert a column of strings to bytes, because Parquet files may contain invalid UTF-8."""
    from pyarrow import large_binary, types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_string(column.type) or types.is_large_string(column.type):
        column = column.cast(large_binary())
    return column


def _no_field(place: str, field: str, fields: list[str]) -> UserError:
    shown = ", ".join(map(repr, fields[:8])) + (", ..." if len(fields) > 8 else "")
    return UserError(
        f"{place} has no field {field!r} (existing fields: {shown or 'none'})\n"
        "set the field that contains the text with --text_field=NAME, or use --whole_files to read "
        "each file as one document"
    )
