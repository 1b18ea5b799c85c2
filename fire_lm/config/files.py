"""Finding and reading gin files: search paths, includes, precedence."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from gin.config_parser import IncludeStatement

from fire_lm.config.syntax import Key, Statement, parse_binding, parse_file
from fire_lm.errors import UserError, first_line, nearest

# Holds `configs/`: the repository in a checkout, the package itself where a wheel is installed.
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
SHIPPED = _PACKAGE.parent if (_PACKAGE.parent / "configs/base.gin").exists() else _PACKAGE


def read_statements(
    gin_files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]
) -> tuple[list[Statement], dict[str, str]]:
    """Read all gin files and command-line bindings.

    A name is looked for under `search_paths`, then '.', then among the shipped files. A file that
    is *included* a second time is skipped: gin would read it again, and so undo what came between
    (two files that both include base.gin). A file named twice in `gin_files` is read twice.

    Returns:
      The statements in order of increasing precedence (the files, then the command line), and
      the modules that the files import, each with the line that does.
    """
    folders = (*search_paths, ".", str(SHIPPED))
    statements: list[Statement] = []
    imports: dict[str, str] = {}
    finished: set[str] = set()

    def read(name: str, asked_by: str) -> None:
        path = _find(name, folders, asked_by)
        if str(path.resolve()) in finished and asked_by != "--gin_file":
            return
        finished.add(str(path.resolve()))
        lines: dict[Key, str] = {}
        for one in parse_file(_text(path, name, asked_by), name):
            if not isinstance(one, Statement):
                where = f"{name}:{one.location.line_num}"
                if isinstance(one, IncludeStatement):
                    read(one.filename, where)
                else:
                    imports.setdefault(one.module, where)
                continue
            if (first := lines.setdefault(one.key, one.where)) != one.where:
                raise UserError(f"{one.where}: {one.key} is already set at {first}; remove one.")
            statements.append(one)

    for name in gin_files:
        read(name, asked_by="--gin_file")
    return statements + [parse_binding(binding) for binding in bindings], imports


def _text(path: Any, name: str, asked_by: str) -> str:
    try:
        return str(path.read_bytes(), "utf-8-sig")  # some editors write a byte-order mark
    except UnicodeError:
        reason = "it is not UTF-8 text; save it as UTF-8."
    except OSError as error:
        reason = first_line(error)
    raise UserError(f"{asked_by}: cannot read {name}: {reason}")


def _find(name: str, folders: Sequence[str], asked_by: str) -> Any:
    """Return the path of a gin file, or raise UserError with what was found instead."""
    alone = "://" in name or pathlib.PurePath(name).is_absolute()
    try:
        candidates = [_path(name)] if alone else [_path(folder) / name for folder in folders]
        for path in candidates:
            if path.is_file():
                return path
        if other := next(filter(None, map(_other_than_file, candidates)), ""):
            raise UserError(f"{asked_by}: there is no gin file {name!r}: it is {other}.")
    except (OSError, ValueError, KeyError) as error:  # too long, a null byte, no such bucket
        raise UserError(f"{asked_by}: cannot read {name!r}: {first_line(error)}") from None
    known: dict[str, str] = {}  # files beside where it should be, or anywhere under configs/
    for path in candidates:
        for file in path.parent.glob("*.gin") if path.parent.is_dir() else ():
            known.setdefault(file.stem, str(pathlib.PurePath(name).parent / file.name))
    for folder in map(_path, folders):
        for file in folder.glob("configs/**/*.gin") if folder.is_dir() else ():
            known.setdefault(file.stem, str(file.relative_to(folder)))
    hint = "" if alone else f" Looked in {', '.join(dict.fromkeys(folders))}."
    if near := nearest(pathlib.PurePath(name).stem, known):
        hint = f" Did you mean {known[near]}?"
    raise UserError(f"{asked_by}: there is no gin file {name!r}.{hint}")


def _other_than_file(path: Any) -> str:
    """Describe a path that is not a file; empty if nothing exists there."""
    if path.is_dir():
        names = sorted(file.name for file in path.glob("*.gin"))
        within = f", with {', '.join(names[:3])}" if names else ""
        return "a folder" + within + ", ..." * (len(names) > 3)
    if not isinstance(path, pathlib.Path):
        return ""
    if path.is_symlink() and not path.exists():
        return f"a link to {os.readlink(path)}, which is not there"
    return "a device or a pipe" if path.exists() else ""


def _path(name: str) -> Any:
    if "://" not in name:
        return pathlib.Path(name)
    from etils import epath  # imported late: it is slow, and only buckets need it

    return epath.Path(name)
