"""Finding and reading gin files: search paths, includes, the order in which later wins."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fire_lm.config.syntax import Key, Scalar, Statement, parse_binding, parse_file
from fire_lm.errors import UserError, first_line, nearest

# Holds `configs/`: the repository in a checkout, the package itself where a wheel is installed.
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
SHIPPED = _PACKAGE.parent if (_PACKAGE.parent / "configs/base.gin").exists() else _PACKAGE


def read_statements(
    gin_files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    first: Mapping[str, str] | None = None,
) -> tuple[list[Statement], dict[str, str]]:
    """Every statement in order of increasing precedence: the texts `first`, by their names, the
    files, then the command line. And the modules that these import, with where they do.

    A name is looked for under `search_paths`, then '.', then what is shipped. A file that
    is *included* a second time is skipped: gin would read it again, and so undo what came
    between (two files that both include base.gin). A file named twice in `gin_files` is read
    twice.
    """
    reader = _Reader((*search_paths, ".", str(SHIPPED)))
    for name, text in (first or {}).items():
        reader.take(text, name)
    for name in gin_files:
        reader.read(name, wanted_by="--gin_file")
    return reader.statements + [parse_binding(binding) for binding in bindings], reader.imports


def stated(
    gin_files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]
) -> dict[Key, Any]:
    """What these bind, by key, before anything is resolved: plain values as they are, all others
    as trees of the grammar."""
    statements, _ = read_statements(gin_files, bindings, search_paths)
    return {
        one.key: one.node.value if isinstance(one.node, Scalar) else one.node for one in statements
    }


class _Reader:
    def __init__(self, search_paths: Sequence[str]) -> None:
        self.search_paths = search_paths
        self.statements: list[Statement] = []
        self.imports: dict[str, str] = {}
        self._read: set[str] = set()

    def read(self, name: str, wanted_by: str) -> None:
        path = self._find(name, wanted_by)
        identity = str(path.resolve())
        if identity in self._read and wanted_by != "--gin_file":
            return
        self._read.add(identity)
        try:
            text = path.read_bytes().decode("utf-8-sig")  # editors put a byte-order mark first
        except UnicodeError:
            raise UserError(
                f"{wanted_by}: cannot read {name}: it is not UTF-8 text; save it as UTF-8."
            ) from None
        except OSError as error:
            raise UserError(f"{wanted_by}: cannot read {name}: {first_line(error)}") from None
        self.take(text, name)

    def take(self, text: str, name: str) -> None:
        lines: dict[Key, str] = {}
        for statement in parse_file(text, name):
            where = statement.where
            if isinstance(statement, Statement):
                if (first := lines.setdefault(statement.key, where)) != where:
                    raise UserError(
                        f"{where}: {statement.key} is already set at {first}; remove one."
                    )
                self.statements.append(statement)
            elif statement.keyword == "include":
                self.read(statement.name, wanted_by=where)
            else:
                self.imports.setdefault(statement.name, where)

    def _find(self, name: str, wanted_by: str) -> Any:
        try:
            for path in self._candidates(name):
                if path.is_file():
                    return path
            if other := next(filter(None, map(_instead, self._candidates(name))), ""):
                raise UserError(f"{wanted_by}: there is no gin file {name!r}: it is {other}.")
        except (OSError, ValueError, KeyError) as error:  # too long, a null byte, no such bucket
            raise UserError(f"{wanted_by}: cannot read {name!r}: {first_line(error)}") from None
        near = nearest(pathlib.PurePath(name).stem, known := self._known(name))
        hint = f" Did you mean {known[near]}?" if near else ""
        if not near and not pathlib.PurePath(name).is_absolute():
            hint = f" Looked in {', '.join(dict.fromkeys(map(str, self.search_paths)))}."
        raise UserError(f"{wanted_by}: there is no gin file {name!r}.{hint}")

    def _candidates(self, name: str) -> list[Any]:
        if "://" in name or pathlib.PurePath(name).is_absolute():
            return [_path(name)]
        return [_path(folder) / name for folder in self.search_paths]

    def _known(self, name: str) -> dict[str, str]:
        """Gin files beside where `name` should be, or anywhere under configs/: stem -> path."""
        known: dict[str, str] = {}
        for path in self._candidates(name):
            for file in path.parent.glob("*.gin") if path.parent.is_dir() else ():
                known.setdefault(file.stem, str(pathlib.PurePath(name).parent / file.name))
        for folder in self.search_paths:
            configs = _path(folder) / "configs"
            for file in configs.glob("**/*.gin") if configs.is_dir() else ():
                known.setdefault(file.stem, str(file.relative_to(_path(folder))))
        return known


def _instead(path: Any) -> str:
    """Describe a path that is not a file; empty if nothing exists there."""
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.gin"))
        return (
            "a folder" + f", with {', '.join(files[:3])}" * bool(files) + ", ..." * (len(files) > 3)
        )
    if not isinstance(path, pathlib.Path):
        return ""
    if path.is_symlink() and not path.exists():
        return f"a link to {os.readlink(path)}, which is not there"
    return "a device or a pipe" if path.exists() else ""


def _path(name: str) -> Any:
    """A pathlib path, or for a bucket the like of it."""
    if "://" not in str(name):
        return pathlib.Path(name)
    from etils import epath  # takes a while to import, and few need it

    return epath.Path(name)
