"""Operations on whole files, such as atomic replacement and creation without overwriting."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from etils import epath

from fire_lm.storage import objects
from fire_lm.storage.lock import lock_file


def in_bucket(path: str | epath.Path) -> bool:
    return "://" in (path if isinstance(path, str) else path.as_posix())


def make_folder(path: str | epath.Path) -> None:
    """Create a folder and its parents on a disk; do nothing in a bucket, which has no folders.

    Raises:
      OSError: The folder cannot be created.
    """
    if not in_bucket(path):
        Path(path).mkdir(parents=True, exist_ok=True)


@contextmanager
def removing_new_folders(path: str | epath.Path) -> Iterator[None]:
    """Remove the folders of a path that are created within the block and are empty at its end."""
    folders = [] if in_bucket(path) else [Path(path).absolute(), *Path(path).absolute().parents]
    new = list(itertools.takewhile(lambda folder: not folder.exists(), folders))
    try:
        yield
    finally:
        for folder in new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def read_bytes(path: str | epath.Path) -> bytes | None:
    """Return the content of a file, or None if the file does not exist.

    Raises:
      RunFailed, OSError: The file cannot be read.
    """
    if in_bucket(path):
        return objects.read(path).content
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def read_ends(path: str | epath.Path, count: int) -> bytes | None:
    """Return the first and the last `count` bytes of a file, or the whole file if it is shorter.

    The result is None if the file does not exist.

    Raises:
      RunFailed, OSError: The file cannot be read.
    """
    if in_bucket(path):
        return objects.read_ends(path, count)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < count:
                return file.read()
            head = file.read(count)
            file.seek(-count, os.SEEK_END)
            return head + file.read(count)
    except FileNotFoundError:
        return None


def sha256(path: str | epath.Path) -> str | None:
    """Return the SHA-256 of a small file in hexadecimal, or None if the file does not exist.

    Raises:
      RunFailed, OSError: The file cannot be read.
    """
    content = read_bytes(path)
    return None if content is None else hashlib.sha256(content).hexdigest()


def replace_text(path: str | epath.Path, text: str, *, durable: bool = False) -> None:
    """Write a text file atomically; see `replace_bytes`."""
    replace_bytes(path, text.encode(), durable=durable)


def replace_bytes(path: str | epath.Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically: a reader sees either all of the old or all of the new content.

    Args:
      durable: Whether to sync the new content to the disk before it replaces the old content.

    Raises:
      RunFailed, OSError: The file cannot be written.
    """
    if in_bucket(path):  # an object becomes visible only when it is complete
        objects.write(path, content)
        return
    target = Path(path)
    with _written_beside(target, content, durable) as temporary:
        temporary.replace(target)


def change_text(path: epath.Path, change: Callable[[bytes | None], str | None]) -> None:
    """Replace a file's content with the result of `change`, without losing concurrent changes.

    `change` receives the current content, or None if the file does not exist. If `change` returns
    None, the file remains unchanged.

    On a disk, a lock file next to the file is locked during the change, except on shared file
    systems that do not support locks. In a bucket, `change` is called again if another process has
    changed the object before the new text is written.

    Raises:
      RunFailed, OSError: The file cannot be read or written.
    """
    if in_bucket(path):
        done = False
        while not done:
            stored = objects.read(path)
            text = change(stored.content)
            done = text is None or bool(objects.write(path, text.encode(), stored.generation))
        return
    with Path(path.parent / f".{path.stem}.lock").open("a") as file:
        lock_file(file, wait=True)
        text = change(read_bytes(path))
        if text is not None:
            replace_text(path, text)


def create_text(path: str | epath.Path, text: str) -> bool:
    """Create a file and sync it to the disk, unless the file already exists.

    Returns:
      Whether the file was created.

    Raises:
      RunFailed, OSError: The file cannot be written.
    """
    if in_bucket(path):
        stored = objects.read(path)
        return (
            stored.content is None
            and objects.write(path, text.encode(), stored.generation) is not None
        )
    target = Path(path)
    with _written_beside(target, text.encode(), durable=True) as temporary:
        try:
            os.link(temporary, target)  # unlike a rename, a link never replaces another file
        except OSError as error:
            if isinstance(error, FileExistsError) or target.exists():
                temporary.unlink()
                return False
            temporary.replace(target)  # the file system does not support hard links
        else:
            temporary.unlink()
    return True


def remove(path: str | epath.Path) -> None:
    """Remove a file if it exists.

    Raises:
      RunFailed, OSError: The file cannot be removed.
    """
    if in_bucket(path):
        objects.remove(path)
    else:
        Path(path).unlink(missing_ok=True)


@contextmanager
def _written_beside(target: Path, content: bytes, durable: bool) -> Iterator[Path]:
    """Yield a new file beside `target`, which is removed if the write or the block fails."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield temporary
    except BaseException:  # after a rename, a file of this name would be another writer's
        temporary.unlink(missing_ok=True)
        raise


_failing: set[str] = set()


@contextmanager
def tolerating(what: str, consequence: str = "training continues") -> Iterator[None]:
    """Catch any exception in a block that writes a log or a figure, so that the work continues.

    The failure is reported once, and again only if the log could be written in the meantime. Every
    exception is caught, because the libraries that access buckets raise many classes of errors.

    Args:
      what: The name of the log or figure in the message.
      consequence: The end of the message.
    """
    try:
        yield
    except Exception as error:
        if what not in _failing:
            print(f"\n{what} cannot be written: {error}; {consequence}", file=sys.stderr)
        _failing.add(what)
    else:
        _failing.discard(what)
