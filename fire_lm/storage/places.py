"""Functions that convert the paths that users specify."""

from __future__ import annotations

from pathlib import Path

from etils import epath

from fire_lm.errors import UserError
from fire_lm.storage.files import in_bucket


def place(path: str | epath.Path) -> epath.Path:
    """Return the path of a local folder or of a folder in a bucket.

    Raises:
      UserError: The path has an unknown scheme.
    """
    try:
        return epath.Path(path)
    except KeyError as error:
        raise UserError(f"{path} is neither a local folder nor gs://") from error


def resolved(path: epath.Path) -> epath.Path:
    """Return the canonical path of a folder, with symbolic links resolved on a disk."""
    # The `resolve` method of etils would not follow links.
    return path if in_bucket(path) else epath.Path(Path(path).resolve())


def with_name(path: epath.Path) -> epath.Path:
    """Return a path to the same folder that ends in a name and not in `.` or `..`.

    Tables show this name.
    """
    return path if path.name not in ("", "..") else resolved(path)
