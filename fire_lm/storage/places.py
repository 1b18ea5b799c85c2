"""Paths as users give them."""

from __future__ import annotations

from pathlib import Path

from etils import epath

from fire_lm.errors import UserError
from fire_lm.storage.files import in_bucket


def place(path: str | epath.Path) -> epath.Path:
    try:
        return epath.Path(path)
    except KeyError as error:
        raise UserError(f"{path} is neither a local folder nor gs://") from error


def resolved(path: epath.Path) -> epath.Path:
    """One spelling for all names of a folder, symbolic links resolved; none in a bucket."""
    return path if in_bucket(path) else epath.Path(Path(path).resolve())  # etils keeps links


def with_name(path: epath.Path) -> epath.Path:
    """`.` and `..` have none that a table could use."""
    return path if path.name not in ("", "..") else resolved(path)
