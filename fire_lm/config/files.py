"""Functions that find and read gin files, with their search paths, includes and precedence."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gin.config_parser import IncludeStatement

from fire_lm.config.syntax import Key, Statement, parse_binding, parse_file, plain
from fire_lm.errors import UserError, first_line, nearest

# The folder that contains `configs/`: the repository in a checkout, or the package itself in an
# installed wheel.
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
SHIPPED = _PACKAGE.parent if (_PACKAGE.parent / "configs/base.gin").exists() else _PACKAGE


class GinText(NamedTuple):
    """A gin text that takes the place of a file; messages show its name."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class Statements:
    """What gin files and command-line bindings state, read once and not yet resolved.

    Attributes:
      statements: The statements in order of increasing precedence.
      imports: The location of each import, as `file:line`, by the name of the imported module.
      keys: The keys that each of the given files sets, itself or by its includes, by file.
    """

    statements: tuple[Statement, ...]
    imports: Mapping[str, str]
    keys: Mapping[str, frozenset[Key]]

    @functools.cached_property
    def configurables(self) -> frozenset[str]:
        """The names of the configurables that have bindings."""
        return frozenset(statement.key.configurable for statement in self.statements)

    def value(self, name: str) -> Any:
        """Return the unresolved value of a macro or key, or None if it is not set.

        References and macros are text, such as '@FIRE' and '%SEED'.
        """
        values = [item.value for item in self.statements if str(item.key) == name]
        return values[-1] if values else None

    def preceded_by(self, texts: Iterable[GinText]) -> Statements:
        """Return these statements after those of `texts`, over which they take precedence."""
        earlier = read(list(texts), (), ())
        return Statements(
            (*earlier.statements, *self.statements),
            {**earlier.imports, **self.imports},
            self.keys,
        )

    def check_one_choice(self, macros: Collection[str], experiments: Collection[str]) -> None:
        """Raise UserError if a later file undoes the choice of a file, the value of a macro.

        An experiment's file, which sets parameters of one of `experiments`, may be overridden: it
        is given for its other settings too. The same file may be given twice.
        """
        whole = {
            name
            for name, keys in self.keys.items()
            if any(key.configurable in experiments for key in keys)
        }
        for macro in macros:
            setting = [name for name, keys in self.keys.items() if Key((), "", macro) in keys]
            for name, later in itertools.pairwise(setting):
                if name in whole:
                    continue
                order = f", and {name} after {later} if it is to apply" * (later in whole)
                raise UserError(
                    f"--gin_file: {name} and {later} both set {macro}, so the first has no effect\n"
                    f"give only one of them{order}"
                )


def read(
    gin_files: Sequence[str | GinText], bindings: Sequence[str], search_paths: Sequence[str]
) -> Statements:
    """Read all gin files, each of them once, and then the command-line bindings.

    A file is searched for under `search_paths`, then in '.', then among the shipped files. A file
    that is *included* a second time is skipped. (gin would read it again and thereby undo bindings
    between the two includes, such as those of one of two files that both include base.gin.) A file
    that occurs twice in `gin_files` counts twice.

    Raises:
      UserError: A file or binding cannot be read, or a file sets the same key twice.
    """
    reader = _Reader((*search_paths, ".", str(SHIPPED)))
    statements: list[Statement] = []
    keys: dict[str, frozenset[Key]] = {}
    finished: set[str] = set()
    for file in gin_files:
        if isinstance(file, GinText):
            inside = reader.parse(file.text, file.name)
        else:
            place = reader.place(file, "--gin_file")
            inside = reader.inside[place]
            finished.add(place)
            keys[file] = frozenset(item.key for item in reader.flat(inside, {place}))
        statements += reader.flat(inside, finished)
    return Statements((*statements, *map(parse_binding, bindings)), reader.imports, keys)


class _Reader:
    """Reads gin files and their includes, each of them once."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = folders
        self.inside: dict[str, list[Statement | str]] = {}  # statements and the places of includes
        self.imports: dict[str, str] = {}

    def place(self, name: str, asked_by: str) -> str:
        """Return the absolute path of a file, after parsing it if it is new."""
        path = _find(name, self.folders, asked_by)
        place = str(path.resolve())
        if place not in self.inside:
            self.inside[place] = []  # a file may include itself
            self.inside[place] += self.parse(_text(path, name, asked_by), name)
        return place

    def parse(self, text: str, name: str) -> list[Statement | str]:
        """Return the statements of a text and the places of its includes, in order."""
        inside: list[Statement | str] = []
        lines: dict[Key, str] = {}
        for item in parse_file(text, name):
            if isinstance(item, Statement):
                if (first := lines.setdefault(item.key, item.where)) != item.where:
                    raise UserError(
                        f"{item.where}: {item.key} is already set at {first}: remove one of them"
                    )
                inside.append(item)
                continue
            where = f"{name}:{item.location.line_num}"
            if isinstance(item, IncludeStatement):
                inside.append(self.place(item.filename, where))
            else:
                self.imports.setdefault(item.module, where)
        return inside

    def flat(self, inside: Iterable[Statement | str], finished: set[str]) -> Iterator[Statement]:
        """Iterate over statements, with those of includes that are not in `finished`; add these."""
        for item in inside:
            if isinstance(item, Statement):
                yield item
            elif item not in finished:
                finished.add(item)
                yield from self.flat(self.inside[item], finished)


def values_in(path: pathlib.Path) -> dict[Key, Any]:
    """Return the values that a file without includes sets, by key; references are `Ref`."""
    inside = parse_file(path.read_text(encoding="utf-8"), path.name)
    return {item.key: plain(item.node) for item in inside if isinstance(item, Statement)}


def _text(path: Any, name: str, asked_by: str) -> str:
    try:
        return str(path.read_bytes(), "utf-8-sig")  # because some editors write a byte-order mark
    except UnicodeError:
        reason = "it is not UTF-8 text: save it as UTF-8"
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
            raise UserError(f"{asked_by}: {name!r} is not a gin file: it is {other}")
    except (OSError, ValueError) as error:  # a long name, a null byte, a missing bucket
        raise UserError(f"{asked_by}: cannot read {name!r}: {first_line(error)}") from None
    known: dict[str, str] = {}  # files in the folder of `name` or under configs/
    for path in candidates:
        for file in path.parent.glob("*.gin") if path.parent.is_dir() else ():
            known.setdefault(file.stem, str(pathlib.PurePath(name).parent / file.name))
    for folder in map(_path, folders):
        for file in folder.glob("configs/**/*.gin") if folder.is_dir() else ():
            known.setdefault(file.stem, str(file.relative_to(folder)))
    hint = "" if alone else f" in {', '.join(dict.fromkeys(folders))}"
    if near := nearest(pathlib.PurePath(name).stem, known):
        hint = f". Did you mean {known[near]}?"
    raise UserError(f"{asked_by}: there is no gin file {name!r}{hint}")


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
    from fire_lm.storage import place  # imported here because only buckets need it

    return place(name)
