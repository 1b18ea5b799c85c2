"""Documents from files: plain text, JSON lines and Parquet, also compressed, local or in a bucket.

A JSON line and a row of Parquet are a document each, any other file is one as a whole. `.gz` and
`.zst` may follow the other ending.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from etils import epath

from fire_lm.data.text import LONGEST_DOCUMENT
from fire_lm.errors import RunFailed, UserError

# Where it was read, and its text; of a longer file than LONGEST_DOCUMENT only a little more.
Document = tuple[str, bytes]
# Receives bytes read and bytes in all.
OnBytes = Callable[[int, int], None]

_JSON = {".json", ".jsonl", ".ndjson"}
_PARQUET = {".parquet", ".pq"}
_COMPRESSED = {".gz", ".zst"}


def read_documents(
    source: str, text_field: str | None = "text", on_bytes: OnBytes = lambda done, total: None
) -> Iterator[Document]:
    """The documents of a file, or of all files below a folder but hidden ones, in sorted order.

    Args:
        source: file or folder, local or gs://.
        text_field: of a JSON object or a row of Parquet; a missing one is an error, null is empty.
            None reads every file as one document, whatever its ending.
        on_bytes: called after each document.

    Raises:
        UserError: no such file, nothing in it, or no such field. RunFailed: a damaged file; both
            name the file and the line or row.
    """
    files = list_files(source)
    total, before = sum(size for _, _, size in files), 0
    for name, path, size in files:
        with path.open("rb") as file:
            for document in read_file(name, file, text_field):
                yield document
                on_bytes(before + (0 if file.closed else min(file.tell(), size)), total)
        before += size
    on_bytes(total, total)


def list_files(source: str) -> list[tuple[str, epath.Path, int]]:
    """(name below `source`, path, bytes) of each file to read."""
    from fire_lm.data.quiet_tensorflow import tf

    top = epath.Path(source)
    try:
        if not top.exists():
            raise UserError(f"There is no {source} to read documents from: --from=FILE_OR_FOLDER")
        if not top.is_dir():
            return [(top.name, top, top.stat().length)]
        found = []
        for folder, folders, names in tf.io.gfile.walk(source):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            inside = epath.Path(folder)
            for name in names:
                if not name.startswith("."):
                    path = inside / name
                    found.append((path.relative_to(top).as_posix(), path, path.stat().length))
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(f"Cannot read {source}: {reason}") from error
    if not found:
        raise UserError(f"{source} holds no files: there are no documents to read")
    return sorted(found)


def read_file(name: str, file: BinaryIO, text_field: str | None) -> Iterator[Document]:
    """The documents of one file; see `read_documents`."""
    endings = [ending.lower() for ending in pathlib.PurePath(name).suffixes]
    compressed = endings.pop() if endings and endings[-1] in _COMPRESSED else ""
    kind = endings[-1] if endings else ""
    if kind in _PARQUET and text_field is not None:
        yield from _parquet(name, file, text_field)
        return
    with contextlib.closing(_decompressed(file, compressed)) as stream:
        if kind in _JSON and text_field is not None:
            yield from _json_lines(name, stream, text_field)
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
        first_line = str(error).partition("\n")[0]
        raise RunFailed(f"{place}: the file is truncated or damaged ({first_line})") from error


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
            yield f"{name}:{number}", line  # left out for what it is, as such a file of text
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunFailed(f"{place} is not JSON ({error}): one object a line is read") from error
        if not isinstance(record, dict):
            raise RunFailed(f"{place} is not a JSON object with a field {text_field!r}")
        if text_field not in record:
            raise _no_field(place, text_field, list(record))
        yield f"{name}:{number}", _text_of(place, record[text_field])


def _text_of(place: str, value: object) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str):
        raise RunFailed(f"{place}: the text is a {type(value).__name__}, not a string")
    return value.encode(errors="surrogatepass")  # half a pair is no UTF-8: counted as such


def _parquet(name: str, file: BinaryIO, text_field: str) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        table = parquet.ParquetFile(file)
        if text_field not in table.schema_arrow.names:
            raise _no_field(name, text_field, table.schema_arrow.names)
        for batch in table.iter_batches(batch_size=256, columns=[text_field]):
            for value in batch.column(0).to_pylist():
                number += 1
                text = (
                    value if isinstance(value, bytes) else _text_of(f"{name} row {number}", value)
                )
                yield f"{name}:{number}", text
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        first_line = str(error).partition("\n")[0]
        raise RunFailed(
            f"{name} row {number + 1}: not a whole Parquet file ({first_line})"
        ) from error


def _no_field(place: str, field: str, found: list[str]) -> UserError:
    shown = ", ".join(map(repr, found[:8])) + (", ..." if len(found) > 8 else "")
    return UserError(
        f"{place} has no field {field!r}, only {shown or 'none'}\n"
        "say which one holds the text: --text_field=NAME (or --whole_files: a document each)"
    )
