"""Checks whether files exist. An error never counts as absence: a 403 must not restart a run.

TensorFlow's `is_dir` returns False for every error, and its listing of a folder calls `is_dir`
first; only its `exists` distinguishes an error from absence.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from etils import epath

from fire_lm.errors import RunFailed, UserError, is_of_storage, reason
from fire_lm.storage import objects
from fire_lm.storage.files import in_bucket
from fire_lm.storage.quiet import load_tensorflow, without_log_lines


def present(path: str | epath.Path) -> bool:
    """Return whether a file or folder of that name exists.

    Raises:
      RunFailed: The storage fails.
    """
    try:
        return epath.Path(path).exists()
    except Exception as error:
        if not is_of_storage(error):
            raise
        raise RunFailed(f"{path} cannot be read: {reason(error)}") from error


def children(folder: str | epath.Path) -> list[epath.Path]:
    """Return the direct children of a folder, in no order; empty if there is no such folder.

    Deeper levels are neither listed nor requested.

    Raises:
      RunFailed: The folder cannot be listed.
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
            problem = error  # even "not found" may hide another error: `present` decides
        if not is_folder(path):
            return []
    raise RunFailed(f"{path} cannot be listed: {reason(problem)}") from problem


def is_folder(path: epath.Path) -> bool:
    """Return whether a folder of that name exists.

    Raises:
      RunFailed: The storage fails.
    """
    try:
        return bool(path.stat().is_directory)
    except FileNotFoundError:
        return False
    except Exception as error:
        if not is_of_storage(error):
            raise
        raise RunFailed(f"{path} cannot be read: {reason(error)}") from error


def require_bucket(path: str | epath.Path, flag: str) -> None:
    """Refuse a path in a bucket that does not exist, within ten seconds and without a write.

    TensorFlow never returns when it has to create a folder in such a bucket. This function also
    loads the storage libraries, and suppresses the lines that they log.

    Args:
      path: A path that is to be written; a path on a disk is not checked.
      flag: The flag that named it.

    Raises:
      UserError: There is no such bucket.
    """
    if not in_bucket(path):
        return
    bucket = epath.Path(path).as_posix().removeprefix("gs://").partition("/")[0]
    if str(path).startswith("gs:") and not re.fullmatch(
        r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]", bucket
    ):
        raise UserError(f"{flag} {path}: {bucket!r} is not a valid bucket name")
    load_tensorflow()  # etils would load it with its log lines
    with without_log_lines(), suppress(RunFailed):
        objects.read(f"gs://{bucket}/.fire_lm")  # tensorstore logs during its first request
        if not present(f"gs://{bucket}"):
            raise UserError(
                f"{flag} {path}: there is no bucket {bucket}\n"
                "check its name, or create it with `gcloud storage buckets create`"
            )


def require_folder(path: epath.Path, flag: str) -> None:
    """Refuse a path where no folder can be created or written to; create nothing.

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
