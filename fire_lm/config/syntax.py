"""A parser that turns text in gin's grammar into statements.

gin-config 0.5.0 has one global configuration, converts no values, and does not keep the text of a
value. This module therefore uses only gin's parser (github.com/google/gin-config,
gin/config_parser.py). A statement keeps its origin and its value, which is a tree of lists and
tuples with the leaves `Scalar`, `Ref` and `Macro`; `repr` formats the tree as gin text.
"""

from __future__ import annotations

import re
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gin import config_parser
from gin.config_parser import BindingStatement, ImportStatement, IncludeStatement

from fire_lm.errors import UserError

REQUIRED = "gin.REQUIRED"  # the one macro that gin itself defines
NO_DICTS = "a value cannot be a dict here: write pairs: (('a', 1), ('b', 2))"


@dataclass(frozen=True, repr=False)
class Scalar:
    """A number, bool, None or string; `text` is the value as written, without quotes."""

    value: Any
    text: str

    def __repr__(self) -> str:
        return repr(self.value) if isinstance(self.value, str | bytes) else self.text


@dataclass(frozen=True, repr=False)
class Ref:
    """A reference: `@scope/name` or, if `call` is true, `@scope/name()`, the result of a call."""

    name: str
    scope: tuple[str, ...]
    call: bool

    def __repr__(self) -> str:
        return "@" + "/".join((*self.scope, self.name)) + "()" * self.call


@dataclass(frozen=True, repr=False)
class Macro:
    """The use of a macro: `%NAME`."""

    name: str

    def __repr__(self) -> str:
        return "%" + self.name


Leaf = Scalar | Ref | Macro
Node = Leaf | list["Node"] | tuple["Node", ...]


@dataclass(frozen=True, order=True)
class Key:
    """The target of a statement.

    For a macro, `configurable` is "", and a scope is part of the name in `parameter`.
    """

    scope: tuple[str, ...]
    configurable: str
    parameter: str

    @classmethod
    def from_text(cls, text: str) -> Key:
        """Return the key that `str` shows as `text`."""
        return _key(*config_parser.parse_binding_key(text))

    def __str__(self) -> str:
        name = f"{self.configurable}.{self.parameter}" if self.configurable else self.parameter
        return "/".join((*self.scope, name))


@dataclass(frozen=True)
class Statement:
    """The statement `key = node`; `where` is `file:line` or the command-line argument."""

    key: Key
    node: Node
    where: str
    from_command_line: bool

    @classmethod
    def from_value(cls, name: str, value: Any, where: str) -> Statement:
        """Return the statement that sets a key to a scalar or a tuple of scalars."""
        node = mapped(value, lambda leaf: Scalar(leaf, str(leaf)))
        return cls(Key.from_text(name), node, where, False)

    @property
    def file(self) -> str:
        """The file that contains the statement, or "" for any argument on the command line."""
        return "" if self.from_command_line else self.where.rpartition(":")[0]

    @property
    def value(self) -> Any:
        """The value, in which references and macros are text, such as '@FIRE' and '%SEED'."""
        return mapped(self.node, lambda leaf: leaf.value if isinstance(leaf, Scalar) else str(leaf))


def leaves(node: Node) -> Iterator[Leaf]:
    """Iterate over the leaves of a tree in reading order."""
    if isinstance(node, list | tuple):
        for item in node:
            yield from leaves(item)
    else:
        yield node


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of `value` in which each leaf is replaced by the result of `change`."""
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, change) for item in value)
    return change(value)


def plain(node: Node) -> Any:
    """Return the value as gin would return it, except that references remain `Ref`."""
    return mapped(node, lambda leaf: leaf.value if isinstance(leaf, Scalar) else leaf)


def shown(value: Any) -> str:
    """Format `value` as one line of at most 80 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


class _Delegate(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Ref:
        *scope, name = scoped_configurable_name.split("/")
        return Ref(name, tuple(scope), evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


class _Parser(config_parser.ConfigParser):
    """gin's parser, changed so that values are trees of leaves instead of Python objects."""

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
            # gin itself ignores the minus sign in `-%X`.
            self._raise_syntax_error("a minus sign must be followed by a number")
        if isinstance(value, Leaf | list | tuple):
            return value
        number = "".join(written[: 1 + (written[0] == "-")])
        return Scalar(value, value if isinstance(value, str) else number)

    def only_value(self) -> Node | None:
        """Return the value, or None if other text follows.

        A comment also counts as other text, because a path may contain a '#'.
        """
        node = self.parse_value()
        while self._current_token.type in (tokenize.NEWLINE, tokenize.NL):
            self._advance_one_token()
        at_end = self._current_token.type == tokenize.ENDMARKER
        return node if at_end and not any(t.startswith("#") for t in self._seen) else None


def read_value(text: str) -> Node | None:
    """Return the value that `text` denotes, or None if `text` is not exactly one gin value."""
    try:
        with warnings.catch_warnings(action="error"):  # such as an invalid escape in a string
            return _Parser(text).only_value()
    except Exception:  # any error of tokenize, literal_eval or gin
        return None


def parse_file(text: str, name: str) -> list[Statement | IncludeStatement | ImportStatement]:
    """Return the statements of a gin file in order; the `where` of each is `name:line`.

    Raises:
      UserError: The text is not valid gin; the message contains `name:line`.
    """
    try:
        with warnings.catch_warnings(action="error"):
            statements = list(_Parser(text))
    except Exception as error:
        raise UserError(_unreadable(error, text, name)) from None
    for item in statements:
        if isinstance(item, ImportStatement) and (item.alias or item.module.startswith("__gin__")):
            raise UserError(
                f"{name}:{item.location.line_num}: names have no module path here: remove `as` and "
                "`from __gin__`; `import my_package.my_encoding` makes its dataclasses known"
            )
    return [
        Statement(_key(item.scope, item.selector, item.arg_name), item.value, where, False)
        if isinstance(item, BindingStatement)
        else item
        for item in statements
        if (where := f"{name}:{item.location.line_num}")
        and not isinstance(item, config_parser.BlockDeclaration)  # its bindings follow one by one
    ]


def parse_binding(text: str) -> Statement:
    """Read a command-line binding `NAME=VALUE`.

    VALUE is read as a gin value if possible, and otherwise as a plain string, so that paths need no
    quotes.
    """
    where = "--gin." + shown(text)
    name, equals, raw = text.partition("=")
    name, raw = name.strip(), raw.strip()
    if not equals:
        raise UserError(f"{where}: a binding must be of the form --gin.NAME=VALUE")
    if not re.fullmatch(r"([A-Za-z_]\w*/)*([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*", name):
        raise UserError(
            f"{where}: {shown(name)!r} is not a valid name; a binding must be of the form "
            "--gin.NAME=VALUE"
        )
    if not raw:
        raise UserError(f"{where}: no value after '=': write '' for an empty string")
    several = re.fullmatch(r"[-\d][-+\w.]*(\s*,\s*[-\d][-+\w.]*)+", raw)
    node = read_value(f"({raw})" if several else raw)  # 512,1024 needs no brackets
    if node is None and raw[0] == "{":
        raise UserError(f"{where}: {NO_DICTS}")
    if node is None and (raw[0] in "@%([{'\"" or raw[-1] in "'\""):
        raise UserError(
            f"{where}: cannot read the value: check its quotes and brackets "
            "(quote a string that begins or ends with such a character)"
        )
    return Statement(Key.from_text(name), Scalar(raw, raw) if node is None else node, where, True)


def _key(scope: str, configurable: str, parameter: str) -> Key:
    if not parameter:  # a macro
        return Key((), "", f"{scope}/{configurable}" if scope else configurable)
    return Key(tuple(scope.split("/")) if scope else (), configurable, parameter)


def _unreadable(error: Exception, text: str, name: str) -> str:
    line, reason = 0, str(error)
    if isinstance(error, SyntaxError):
        line, reason = error.lineno or 0, error.msg or ""
    elif isinstance(error, tokenize.TokenError) and len(error.args) == 2:
        reason, (line, _) = error.args
    content = "".join(text.split("\n")[line - 1 : line])
    reason = shown(reason).split(" Failed to parse")[0].split(" (<")[0].rstrip(".")
    reason = "not a value" if "malformed node" in reason else reason
    return (
        f"{name}:{line}: cannot read {shown(content)!r}: {reason}\n"
        "Write a statement as NAME = VALUE, a string in quotes, a reference as @Name, and a macro "
        "as %NAME"
    )
