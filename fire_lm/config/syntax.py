"""gin's grammar, read into plain statements. The only import of gin in fire_lm.

gin-config 0.5.0 keeps one global registry and one global configuration, converts nothing and
forgets how a value was written. So only its parser is used here: a statement keeps its place and
its value as a small tree (`Scalar`, `Group`, `Ref`, `Macro`), and the rest of this package gives
the tree its meaning. Source: github.com/google/gin-config, gin/config_parser.py.
"""

from __future__ import annotations

import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gin import config_parser

from fire_lm.errors import UserError

REQUIRED = "gin.REQUIRED"  # the one macro that gin itself defines
NO_DICTS = "a value cannot be a dict here; write pairs: (('a', 1), ('b', 2))"


@dataclass(frozen=True)
class Scalar:
    """A number, bool, None or string; `text` is how it was written, without quotes."""

    value: Any
    text: str

    def __str__(self) -> str:
        return repr(self.value) if isinstance(self.value, str | bytes) else self.text


@dataclass(frozen=True)
class Group:
    """A list or a tuple."""

    kind: type
    items: tuple[Node, ...]

    def __str__(self) -> str:
        items = [str(item) for item in self.items]
        if self.kind is list:
            return "[" + ", ".join(items) + "]"
        return "(" + ", ".join(items) + (",)" if len(items) == 1 else ")")


@dataclass(frozen=True)
class Ref:
    """`@scope/name`, or with `call` `@scope/name()`: what the call returns."""

    name: str
    scope: tuple[str, ...]
    call: bool

    def __str__(self) -> str:
        return "@" + "/".join((*self.scope, self.name)) + ("()" if self.call else "")


@dataclass(frozen=True)
class Macro:
    """`%NAME`."""

    name: str

    def __str__(self) -> str:
        return "%" + self.name


Node = Scalar | Group | Ref | Macro


@dataclass(frozen=True, order=True)
class Key:
    """The target of a statement; a macro has no configurable, and its scope is part of its name."""

    scope: tuple[str, ...]
    configurable: str
    parameter: str

    def __str__(self) -> str:
        name = f"{self.configurable}.{self.parameter}" if self.configurable else self.parameter
        return "/".join((*self.scope, name))


@dataclass(frozen=True)
class Statement:
    """`key = node`. `where` is `file:line`, or the command-line argument itself."""

    key: Key
    node: Node
    where: str
    from_command_line: bool


@dataclass(frozen=True)
class Directive:
    """`include 'file.gin'`, or `import package.module`, whose dataclasses any file may name."""

    keyword: Literal["include", "import"]
    name: str
    where: str


def children(node: Node) -> Iterator[Node]:
    """`node` and every node inside it."""
    yield node
    if isinstance(node, Group):
        for item in node.items:
            yield from children(item)


def shown(value: Any) -> str:
    """`value` on one line of at most 80 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


class _Delegate(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Ref:
        *scope, name = scoped_configurable_name.split("/")
        return Ref(name, tuple(scope), evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


class _Parser(config_parser.ConfigParser):
    """gin's parser, giving nodes instead of Python values."""

    def __init__(self, text: str) -> None:
        self._seen: list[str] = []
        super().__init__(text, _Delegate())

    def _advance_one_token(self) -> None:
        super()._advance_one_token()
        self._seen.append(self._current_token.string)

    def parse_value(self) -> Node:
        if self._current_token.string == "{":
            self._raise_syntax_error(NO_DICTS)
        start = len(self._seen) - 1
        value = super().parse_value()
        written = [token for token in self._seen[start:] if token.strip()]
        if isinstance(value, Ref | Macro) and written[0] == "-":
            self._raise_syntax_error("A minus needs a number.")  # gin itself drops it from `-%X`
        if isinstance(value, list | tuple):
            return Group(type(value), tuple(value))
        if isinstance(value, Node):
            return value
        if isinstance(value, str):
            return Scalar(value, value)
        return Scalar(value, "".join(written[: 2 if written[0] == "-" else 1]))

    def value_alone(self) -> Node | None:
        """The value if it is all there is, and no comment is skipped (a path may hold a '#')."""
        node = self.parse_value()
        while self._current_token.type in (tokenize.NEWLINE, tokenize.NL):
            self._advance_one_token()
        at_end = self._current_token.type == tokenize.ENDMARKER
        return node if at_end and not any(t.startswith("#") for t in self._seen) else None


def read_value(text: str) -> Node | None:
    """The value that the whole of `text` is in gin; None if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an invalid escape in a string is an error
            return _Parser(text).value_alone()
    except Exception:  # whatever tokenize, literal_eval and gin raise of it
        return None


def parse_file(text: str, name: str) -> list[Statement | Directive]:
    """The statements of one gin file, in order. UserError with `name:line` if it is unreadable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = list(_Parser(text))
    except Exception as error:
        raise UserError(_unreadable(error, text, name)) from None
    return [
        _statement(one, f"{name}:{one.location.line_num}")
        for one in found
        if not isinstance(one, config_parser.BlockDeclaration)  # its bindings come one by one
    ]


def _statement(found: Any, where: str) -> Statement | Directive:
    if isinstance(found, config_parser.BindingStatement):
        key = _key(found.scope, found.selector, found.arg_name)
        return Statement(key, found.value, where, False)
    if isinstance(found, config_parser.IncludeStatement):
        return Directive("include", found.filename, where)
    if found.alias or found.module.startswith("__gin__"):
        raise UserError(
            f"{where}: names have no module path here, remove `as` and `from __gin__`; `import "
            "my_package.my_encoding` makes the dataclasses of a module known."
        )
    return Directive("import", found.module, where)


def parse_binding(text: str) -> Statement:
    """A command-line binding `NAME=VALUE`.

    VALUE is a gin value if it reads as one; else, so that paths need no quotes, a plain string.
    """
    where = "--gin." + shown(text)
    name, equals, raw = text.partition("=")
    name, raw = name.strip(), raw.strip()
    if not equals:
        raise UserError(f"{where}: a binding must be of the form --gin.NAME=VALUE.")
    if not re.fullmatch(r"([A-Za-z_]\w*/)*([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*", name):
        raise UserError(f"{where}: {shown(name)!r} is not a name; a binding is --gin.NAME=VALUE.")
    if not raw:
        raise UserError(f"{where}: no value after '='; write '' for an empty string.")
    key = _key(*config_parser.parse_binding_key(name))
    return Statement(key, _command_line_value(raw, where), where, True)


_NUMBERS = re.compile(r"[-\d][-+\w.]*(\s*,\s*[-\d][-+\w.]*)+")


def _command_line_value(raw: str, where: str) -> Node:
    if _NUMBERS.fullmatch(raw):  # 512,1024: a shell would trip over brackets
        raw = f"({raw})"
    if (node := read_value(raw)) is not None:
        return node
    if raw[0] == "{":
        raise UserError(f"{where}: {NO_DICTS}.")
    if raw[0] in "@%([{'\"" or raw[-1] in "'\"":
        raise UserError(
            f"{where}: cannot read the value; check its quotes and brackets "
            f"(a string that has such characters at its ends goes in quotes)."
        )
    return Scalar(raw, raw)


def _key(scope: str, configurable: str, parameter: str) -> Key:
    if not parameter:  # a macro
        return Key((), "", f"{scope}/{configurable}" if scope else configurable)
    return Key(tuple(scope.split("/")) if scope else (), configurable, parameter)


def _unreadable(error: BaseException, text: str, name: str) -> str:
    line, reason = 0, str(error)
    if isinstance(error, SyntaxError):
        line, reason = error.lineno or 0, error.msg or ""
    elif isinstance(error, tokenize.TokenError) and len(error.args) == 2:
        reason, (line, _) = error.args
    lines = text.splitlines()
    content = lines[line - 1] if 0 < line <= len(lines) else ""
    reason = shown(reason).split(" Failed to parse")[0].split(" (<")[0].rstrip(".")
    if "malformed node" in reason:
        reason = "not a value"
    return (
        f"{name}:{line}: cannot read {shown(content)!r}: {reason}.\n"
        "A statement is NAME = VALUE; a string goes in quotes, a reference is @Name, a macro %NAME."
    )
