"""Functions that convert the paths that users specify."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from etils import epath
from etils.epath.gpath import PosixGPath

from fire_lm.errors import UserError
from fire_lm.storage.files import in_bucket


class LiteralPath(PosixGPath):
    """A path whose `glob` takes only the pattern as a pattern, not the path itself.

    `glob` of etils joins the two, so it finds nothing in a folder called `run [1]`, and files of
    other folders in one called `run*`. Paths derived from this path have the same class.
    """

    def glob(self, pattern: str) -> Iterator[Self]:
        if not set(self.as_posix()) & set("*?[\\"):
            yield from super().glob(pattern)
            return
        *folders, name = pattern.split("/")
        folder = self.joinpath(*folders)
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if fnmatch.fnmatchcase(path.name, name))


def literal(path: str | epath.Path) -> epath.Path:
    """Return a path that libraries cannot take as a pattern."""
    return LiteralPath(epath.Path(path))


def place(path: str | epath.Path) -> epath.Path:
    """Convert the path of a local folder, or of a folder in a bucket, to an `epath.Path`.

    Raises:
      UserError: The path has an unsupported scheme.
    """
    text = path if isinstance(path, str) else path.as_posix()
    if in_bucket(text) and not text.startswith("gs://"):  # etils also knows s3://, az:// and hf://
        raise UserError(f"{text} is neither a local path nor a gs:// path")
    return literal(path)


def resolved(path: epath.Path) -> epath.Path:
    """Return a folder's absolute path without symbolic links; a path in a bucket is unchanged."""
    # The `resolve` method of etils does not follow links.
    return path if in_bucket(path) else literal(Path(path).resolve().as_posix())


def with_name(path: epath.Path) -> epath.Path:
    """Return a path of the same folder whose last component is a name, not `.` or `..`.

    Tables show this name.
    """
    return path if path.name not in ("", "..") else resolved(path)
