"""Functions that check whether files exist and never mistake an error for absence.

Such a mistake could cause a run to restart from the beginning after a 403 response. TensorFlow's
`isdir` returns False for every error, and TensorFlow calls it before it lists a folder. Only
TensorFlow's `exists` distinguishes an error from absence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from etils import epath

from fire_lm.errors import RunFailed, UserError, is_of_storage, reason
from fire_lm.storage import objects
from fire_lm.storage.files import in_bucket
from fire_lm.storage.quiet import load_tensorflow, without_log_lines


def present(path: str | epath.Path) -> bool:
    """Return whether a file or folder exists at this path.

    Raises:
      RunFailed: The request to the storage fails.
    """
    with _failing_as_run(f"{path} cannot be read"):
        return epath.Path(path).exists()


@contextmanager
def _failing_as_run(problem: str) -> Iterator[None]:
    """Raise RunFailed, with the problem and its reason, for an error of the storage."""
    try:
        yield
    except Exception as error:
        if not is_of_storage(error):
            raise
        raise RunFailed(f"{problem}: {reason(error)}") from error


def children(folder: str | epath.Path) -> list[epath.Path]:
    """Return the direct children of a folder in no particular order.

    The list is empty if the folder does not exist.

    Raises:
      RunFailed, OSError: The folder cannot be listed.
    """
    path = epath.Path(folder)
    if not in_bucket(path):
        return list(path.iterdir()) if path.is_dir() else []
    for _ in range(2):
        if not present(path):
            return []
        try:
            return [child for child in path.iterdir() if child != path]
        except Exception as error:
            if not is_of_storage(error):
                raise
            problem = error  # even "not found" may hide another error, so `present` must decide
        if not is_folder(path):
            return []
    raise RunFailed(f"{path} cannot be listed: {reason(problem)}") from problem


def is_folder(path: epath.Path) -> bool:
    """Return whether a folder exists at this path.

    Raises:
      RunFailed: The request to the storage fails.
    """
    with _failing_as_run(f"{path} cannot be read"), suppress(FileNotFoundError):
        return bool(path.stat().is_directory)
    return False


def require_bucket(path: str | epath.Path, flag: str) -> None:
    """Check that the bucket of a path exists, without writing to it.

    TensorFlow hangs when it has to create a folder in a bucket that does not exist. The check takes
    about ten seconds at most and passes if the storage does not reply. This function also loads the
    storage libraries and suppresses their log lines.

    Args:
      path: The path to write. A path on a disk is not checked.
      flag: The flag with which the user specified the path.

    Raises:
      UserError: The bucket does not exist, or its name is invalid.
    """
    if not in_bucket(path):
        return
    bucket = epath.Path(path).as_posix().removeprefix("gs://").partition("/")[0]
    if not re.fullmatch(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]", bucket):
        raise UserError(f"{flag} {path}: {bucket!r} is not a valid bucket name")
    load_tensorflow()  # etils would load TensorFlow without suppressing the log lines
    with without_log_lines(), suppress(RunFailed):
        objects.read(f"gs://{bucket}/.fire_lm")  # TensorStore logs during its first request
        if not present(f"gs://{bucket}"):
            raise UserError(
                f"{flag} {path}: there is no bucket {bucket}\n"
                f"check its name, or create it with `gcloud storage buckets create gs://{bucket}`"
            )


def require_folder(path: epath.Path, flag: str) -> None:
    """Check that a path is a writable folder or can become one, without creating anything.

    Paths in buckets are not checked.

    Raises:
      UserError: The path or one of its parents is a file, or is not writable.
    """
    if in_bucket(path):
        return
    above = Path(path).absolute()
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        itself = above == Path(path).absolute()
        problem = "is not a folder" if itself else f"cannot be created: {above} is a file"
        raise UserError(f"{flag}={path} {problem}")
    if not os.access(above, os.W_OK):
        raise UserError(f"{flag}={path} cannot be written: {above} is not writable")
