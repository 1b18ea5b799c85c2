"""Functions that find and read gin files, with their search paths, includes and precedence."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gin.config_parser import IncludeStatement

from fire_lm.config.syntax import Key, Scalar, Statement, parse_binding, parse_file
from fire_lm.errors import UserError, first_line, nearest

# The folder that contains `configs/`: the repository in a checkout, or the package itself in an
# installed wheel.
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
SHIPPED = _PACKAGE.parent if (_PACKAGE.parent / "configs/base.gin").exists() else _PACKAGE


class GinText(NamedTuple):
    """A gin text that takes the place of a file; messages show its name."""

    name: str
    text: str


def read_statements(
    gin_files: Sequence[str | GinText],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    first: Mapping[str, str] | None = None,
) -> tuple[list[Statement], dict[str, str]]:
    """Read the texts in `first`, then all gin files, and then the command-line bindings.

    A file is searched for under `search_paths`, then in '.', then among the shipped files. A file
    that is *included* a second time is skipped. (gin would read it again and thereby undo bindings
    between the two includes, such as those of one of two files that both include base.gin.) A file
    that occurs twice in `gin_files` is read twice.

    Returns:
      The statements in order of increasing precedence, and the location of each import, as
      `file:line`, by the name of the imported module.

    Raises:
      UserError: A file or binding cannot be read, or a file sets the same key twice.
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
        take(_text(path, name, asked_by), name)

    def take(text: str, name: str) -> None:
        lines: dict[Key, str] = {}
        for one in parse_file(text, name):
            if not isinstance(one, Statement):
                where = f"{name}:{one.location.line_num}"
                if isinstance(one, IncludeStatement):
                    read(one.filename, where)
                else:
                    imports.setdefault(one.module, where)
                continue
            if (first := lines.setdefault(one.key, one.where)) != one.where:
                raise UserError(
                    f"{one.where}: {one.key} is already set at {first}; remove one of them."
                )
            statements.append(one)

    for name, text in (first or {}).items():
        take(text, name)
    for file in gin_files:
        if isinstance(file, GinText):
            take(file.text, file.name)
        else:
            read(file, asked_by="--gin_file")
    return statements + [parse_binding(binding) for binding in bindings], imports


def check_one_choice(
    gin_files: Sequence[str | GinText],
    search_paths: Sequence[str],
    macros: Collection[str],
    experiments: Collection[str],
) -> None:
    """Check that no file is given whose choice, the value of one of `macros`, a later file undoes.

    An experiment's file, which sets parameters of one of `experiments`, may be overridden: it is
    given for its other settings too. The same file may be given twice.

    Raises:
      UserError: A file that makes a choice precedes another file that makes it too.
    """
    names = [name for name in dict.fromkeys(gin_files) if isinstance(name, str)]
    if len(names) < 2:
        return
    keys = {name: {s.key for s in read_statements([name], (), search_paths)[0]} for name in names}
    whole = {n for n in names if any(key.configurable in experiments for key in keys[n])}
    for macro in macros:
        setting = [name for name in names if Key((), "", macro) in keys[name]]
        for index, name in enumerate(setting[:-1]):
            if name in whole:
                continue
            later = setting[index + 1]
            order = f", and {name} after {later} if it is to apply" * (later in whole)
            raise UserError(
                f"--gin_file: {name} and {later} both set {macro}, so the first has no effect\n"
                f"give only one of them{order}"
            )


def stated(
    gin_files: Sequence[str | GinText], bindings: Sequence[str], search_paths: Sequence[str]
) -> dict[Key, Any]:
    """Return the unresolved value that gin files and command-line bindings give to each key.

    Numbers, bools, None and strings are Python values; all other values are syntax trees.
    """
    statements, _ = read_statements(gin_files, bindings, search_paths)
    return {
        one.key: one.node.value if isinstance(one.node, Scalar) else one.node for one in statements
    }


def _text(path: Any, name: str, asked_by: str) -> str:
    try:
        return str(path.read_bytes(), "utf-8-sig")  # because some editors write a byte-order mark
    except UnicodeError:
        reason = "it is not UTF-8 text; save it as UTF-8."
    except OSError as error:
        reason = first_line(error)
    raise UserError(f"{asked_by}: cannot read {name}: {reason}")


def _find(name: str, folders: Sequence[str], asked_by: str) -> Any:
    """Return the path of a gin file, or raise UserError with a hint."""
    alone = "://" in name or pathlib.PurePath(name).is_absolute()
    try:
        candidates = [_path(name)] if alone else [_path(folder) / name for folder in folders]
        for path in candidates:
            if path.is_file():
                return path
        if other := next(filter(None, map(_other_than_file, candidates)), ""):
            raise UserError(f"{asked_by}: {name!r} is not a gin file: it is {other}.")
    except (OSError, ValueError, KeyError) as error:  # a long name, a null byte, a missing bucket
        raise UserError(f"{asked_by}: cannot read {name!r}: {first_line(error)}") from None
    known: dict[str, str] = {}  # files in the folder of `name` or under configs/
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
    """Describe a path that is not a file, or return "" if the path does not exist."""
    if path.is_dir():
        names = sorted(file.name for file in path.glob("*.gin"))
        within = f", with {', '.join(names[:3])}" if names else ""
        return "a folder" + within + ", ..." * (len(names) > 3)
    if not isinstance(path, pathlib.Path):
        return ""
    if path.is_symlink() and not path.exists():
        return f"a link to {os.readlink(path)}, which does not exist"
    return "a device or a pipe" if path.exists() else ""


def _path(name: str) -> Any:
    if "://" not in name:
        return pathlib.Path(name)
    from etils import epath  # imported here because importing is slow and only buckets need it

    return epath.Path(name)
