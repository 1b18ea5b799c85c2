"""Functions that convert the paths that users specify."""

from __future__ import annotations

from pathlib import Path

from etils import epath

from fire_lm.errors import UserError
from fire_lm.storage.files import in_bucket


def place(path: str | epath.Path) -> epath.Path:
    """Convert the path of a local folder, or of a folder in a bucket, to an `epath.Path`.

    Raises:
      UserError: The path has an unsupported scheme.
    """
    try:
        return epath.Path(path)
    except KeyError as error:
        raise UserError(f"{path} is neither a local path nor a gs:// path") from error


def resolved(path: epath.Path) -> epath.Path:
    """Return a folder's absolute path without symbolic links; a path in a bucket is unchanged."""
    # The `resolve` method of etils does not follow links.
    return path if in_bucket(path) else epath.Path(Path(path).resolve())


def with_name(path: epath.Path) -> epath.Path:
    """Return a path of the same folder whose last component is a name, not `.` or `..`.

    Tables show this name.
    """
    return path if path.name not in ("", "..") else resolved(path)
