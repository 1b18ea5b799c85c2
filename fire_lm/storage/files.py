"""Whole files: read, replaced at once, or created once."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from etils import epath

from fire_lm.storage import objects


def in_bucket(path: str | epath.Path) -> bool:
    return "://" in (path if isinstance(path, str) else path.as_posix())


def make_folder(path: str | epath.Path) -> None:
    """Make a folder and those above it; a bucket needs none.

    Raises:
      OSError: it cannot be made.
    """
    if not in_bucket(path):
        Path(path).mkdir(parents=True, exist_ok=True)


def read_bytes(path: str | epath.Path) -> bytes | None:
    """A file's content, None if there is none.

    Raises:
      RunFailed, OSError: it cannot be read.
    """
    if in_bucket(path):
        return objects.read(path).content
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def replace_text(path: str | epath.Path, text: str, *, durable: bool = False) -> None:
    """Write a file so that a reader finds the old or the new text, and never a part of it.

    Args:
      durable: whether the text is on the disk, and not only on its way, before it replaces the old.

    Raises:
      RunFailed, OSError: it cannot be written.
    """
    if in_bucket(path):  # an object appears when it is complete
        objects.write(path, text.encode())
        return
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    _write(temporary, text, durable)
    temporary.replace(target)


def change_text(path: epath.Path, change: Callable[[bytes | None], str | None]) -> None:
    """Replace a file by what `change` makes of its content, whoever else does so: nobody's change
    is lost. None leaves the file as it is.

    On a disk it is locked meanwhile, by a file beside it (a file system without locks, as some
    shared ones are, does without). In a bucket `change` is asked again if the object is another by
    the time that it is written.

    Raises:
      RunFailed, OSError: the file cannot be read or written.
    """
    if in_bucket(path):
        done = False
        while not done:
            found = objects.read(path)
            text = change(found.content)
            done = text is None or bool(objects.write(path, text.encode(), found.generation))
        return
    with Path(path.parent / f".{path.stem}.lock").open("a") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        text = change(read_bytes(path))
        if text is not None:
            replace_text(path, text)


def create_text(path: str | epath.Path, text: str) -> bool:
    """Write a file that must be new, synced to disk; False if there is one of that name.

    Raises:
      RunFailed, OSError: it cannot be written.
    """
    if in_bucket(path):
        found = objects.read(path)
        return (
            found.content is None
            and objects.write(path, text.encode(), found.generation) is not None
        )
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    _write(temporary, text, durable=True)
    try:
        os.link(temporary, target)  # unlike a rename, never over another file
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if target.exists():
            return False
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def remove(path: str | epath.Path) -> None:
    """Remove a file if there is one.

    Raises:
      RunFailed, OSError: it cannot be removed.
    """
    if in_bucket(path):
        objects.remove(path)
    else:
        Path(path).unlink(missing_ok=True)


def _write(path: Path, text: str, durable: bool) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())


_failing: set[str] = set()


@contextmanager
def tolerating(what: str) -> Iterator[None]:
    """Reports storage that refuses a run's logs, once, and lets the run continue.

    Any error: those of a bucket are of many classes.
    """
    try:
        yield
    except Exception as error:
        if what not in _failing:
            print(f"\n{what} cannot be written: {error}; training continues", file=sys.stderr)
        _failing.add(what)
    else:
        _failing.discard(what)
