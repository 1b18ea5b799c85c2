"""The resolved configuration, `Config`, and the function `load`, which reads and checks it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fire_lm.config import checks
from fire_lm.config.bindings import Bindings, Scoped
from fire_lm.config.coercion import Fitter, Misfit, same
from fire_lm.config.configurables import NO_VALUE, Configurable, imported
from fire_lm.config.files import Statements
from fire_lm.config.syntax import (
    REQUIRED,
    Key,
    Macro,
    Node,
    Ref,
    Statement,
    leaves,
    mapped,
    read_value,
)
from fire_lm.errors import UserError

_HEADER = """\
# The resolved configuration: every macro, and every parameter that a command can reach.
# Read it again with --gin_file=THIS_FILE.
"""


def load(
    stated: Statements,
    *,
    configurables: Mapping[str, Configurable],
    roots: Sequence[str],
    hints: Mapping[str, str] | None = None,
    derive: Callable[[Bindings], Sequence[Statement]] = lambda bindings: (),
    imports: Sequence[str] = (),
) -> Config:
    """Resolve and check what gin files and bindings state, without changing global state.

    Args:
      stated: The statements; see `read`.
      configurables: The undecorated functions and classes that gin files can configure, by name. A
        binding takes effect where an @reference reaches the configurable, never in a direct call in
        Python.
      roots: The names of the configurables that `Config.call` can call.
      hints: Error messages for macros that are needed but not set, by macro. A macro without a hint
        gets a general message.
      derive: A function that returns statements that are derived from all others and take
        precedence over them.
      imports: Further modules whose dataclasses are configurables, as after `import` in a file.

    Raises:
      UserError: A module cannot be imported, or a name or value is misspelt, unused, undefined or
        of the wrong type. The message gives the file and line or the command-line argument, unless
        it comes from `hints`.
    """
    modules = dict.fromkeys(imports, "--import") | dict(stated.imports)
    known = imported(modules, configurables)
    bindings = Bindings(stated.statements, known, tuple(roots), hints or {}, tuple(modules))
    bindings = bindings.extended(derive(bindings))
    checks.check_names(bindings)
    checks.check_macros(bindings)
    config = Config(bindings)
    checks.check_bindings_used(bindings)
    checks.check_no_circle(bindings)
    return config


class Config:
    """A resolved configuration; two configurations are equal if their `text()` is the same."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self._fitter = Fitter(bindings.configurables)
        self._values = {key: self._fit(binding) for key, binding in bindings.winning.items()}
        self._callables: dict[Scoped, Configurable] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.text() == other.text()

    def _fit(self, statement: Statement) -> Any:
        key, node = statement.key, self.bindings.expand(statement)
        if Macro(REQUIRED) in leaves(node):
            return NO_VALUE
        try:
            return self._fitter.fit(node, self.bindings.parameters(key.configurable)[key.parameter])
        except Misfit as misfit:
            source = self.bindings.source(statement)
            expects = f"{key} expects"
            if source is not statement:
                expects = f"{source.key} sets {key}, which expects"
            if macros := [str(leaf) for leaf in leaves(source.node) if isinstance(leaf, Macro)]:
                expects = f"{', '.join(macros)} in {expects}"
            raise UserError(f"{source.where}: {expects} {misfit}") from None

    def arguments(self, at: Scoped) -> dict[str, tuple[Statement | None, Any]]:
        """Return, for each parameter, the statement that binds it (or None) and the value.

        The value is NO_VALUE if the parameter has neither a binding nor a default.
        """
        unbound: dict[str, tuple[Statement | None, Any]] = {
            name: (None, parameter.default)
            for name, parameter in self.bindings.parameters(at.name).items()
        }
        bound = self.bindings.bound(at)
        return unbound | {name: (s, self._values[s.key]) for name, s in bound.items()}

    # Calling.

    def call(self, root: str, /, **kwargs: Any) -> Any:
        """Call a root with its configured values and `kwargs`.

        Raises:
          UserError: A required parameter has no value, or a binding sets a parameter in `kwargs` to
            another value and therefore has no effect. The error is raised before the call.
        """
        self.check_complete(root, **kwargs)
        return self.call_scoped(Scoped((), root), **kwargs)

    def check_complete(self, root: str, /, **given: Any) -> None:
        """Raise UserError if `call` with the arguments `given` would, here or in what it calls."""
        self._check(Scoped((), root), given, heed_files=True)
        for at, called in self.bindings.reach(root).items():
            if called:
                self._check(at, {}, heed_files=True)

    def call_scoped(self, at: Scoped, /, *args: Any, **kwargs: Any) -> Any:
        """Call a configurable with its configured values.

        As in gin, the arguments of the caller take precedence over files.

        Raises:
          UserError: A required parameter has no value, or an argument of the caller contradicts a
            command-line binding.
        """
        target = self.bindings.configurables[at.name]
        given = dict(zip(inspect.signature(target).parameters, args, strict=False)) | kwargs
        self._check(at, given, heed_files=False)

        def follow(leaf: Any) -> Any:
            if not isinstance(leaf, Ref):
                return leaf
            made = self._callable(at.target(leaf))
            return made() if leaf.call else made

        bound = {
            name: mapped(value, follow)
            for name, (statement, value) in self.arguments(at).items()
            if statement is not None and name not in given
        }
        return target(*args, **bound, **kwargs)

    def _check(self, at: Scoped, given: Mapping[str, Any], heed_files: bool) -> None:
        """Raise UserError for a parameter without a value or a binding that the caller overrules.

        A binding is accepted if its value is the caller's or the default. Without `heed_files`, the
        caller may overrule a binding in a file.
        """
        for name, (statement, value) in self.arguments(at).items():
            if name not in given:
                if value is NO_VALUE:
                    source = self.bindings.source(statement) if statement else None
                    where, key = (f"{source.where}: ", source.key) if source else ("", at.key(name))
                    raise UserError(f"{where}{key} has no value: give one with --gin.{key}=VALUE")
            elif (
                statement and value is not NO_VALUE and (heed_files or statement.from_command_line)
            ):
                default = self.bindings.parameters(at.name)[name].default
                if not same(value, given[name]) and not same(value, default):
                    raise UserError(
                        f"{statement.where}: this binding has no effect, because the code sets "
                        f"the {name} of {at.name}: remove it"
                    )

    def _callable(self, at: Scoped) -> Configurable:
        """Return the value of `@Name`: a callable that calls Name with its configured values.

        There is one object for each scope, so the object can be a static argument of `jax.jit`.
        """

        @functools.wraps(self.bindings.configurables[at.name], updated=())
        def configured(*args: Any, **kwargs: Any) -> Any:
            return self.call_scoped(at, *args, **kwargs)

        return self._callables.setdefault(at, configured)

    # Inspecting. References are returned as text, such as '@FIRE'.

    def macro(self, name: str) -> Any | None:
        """Return the value of a macro, or None if the macro is not set.

        The value is converted to the type of the first parameter that takes it.
        """
        macro = self.bindings.macros.get(name)
        if macro is None:
            return None
        for at in self.bindings.reach():
            for statement, value in self.arguments(at).values():
                if statement and value is not NO_VALUE and macro in self.bindings.chain(statement):
                    return _shown(value)
        return _shown(self.bindings.value(macro))

    def leaves(self, root: str) -> dict[Key, tuple[str, Any]]:
        """Return every value that `root` reaches, by key, as a pair of a name and the value.

        The name is the macro or key with which a user would bind the value. The defaults of each
        configurable come before its bound values.
        """
        leaves = {}
        for at in self.bindings.reach(root):
            arguments = self.arguments(at).items()
            for name, (statement, value) in sorted(arguments, key=lambda a: a[1][0] is not None):
                key = self.bindings.source(statement).key if statement else at.key(name)
                if value is not NO_VALUE:
                    leaves[at.key(name)] = (str(key), _shown(value))
        return leaves

    def values(self, root: str) -> dict[str, Any]:
        """Return the values of the parameters of `root`, including defaults."""
        arguments = self.arguments(Scoped((), root)).items()
        return {name: _shown(v) for name, (_, v) in arguments if v is not NO_VALUE}

    def idle(self, name: str) -> dict[str, tuple[str, Any]]:
        """Return the bindings of a configurable that no root reaches.

        Each bound parameter is mapped to the location of its binding, as `file:line`, and its
        value. The result is {} if a root reaches the configurable.
        """
        if any(at.name == name for at in self.bindings.reach()):
            return {}
        return {
            key.parameter: (statement.where, _shown(self._values[key]))
            for key, statement in self.bindings.winning.items()
            if key.configurable == name
        }

    # Changing and writing.

    def with_values(self, values: Mapping[str, Any], where: str) -> Config:
        """Return this configuration with other values for some macros and parameters.

        The values can be numbers, strings, bools or None, or tuples of these. In messages, `where`
        describes the origin of the values.
        """
        new = [Statement.from_value(name, value, where) for name, value in values.items()]
        return Config(self.bindings.extended(new))

    def text(self, *roots: str) -> str:
        """Return gin text from which `load` makes an equal Config without other files.

        The text contains all macros in use and every parameter of every configurable that a root
        reaches: bound values as they were written, and other parameters with their defaults if gin
        can express them. All other parameters are omitted. Equal configurations have the same text.
        With `roots`, only configurables that these roots reach are included.
        """
        written: dict[str, dict[Key, Node]] = {}
        for at in self.bindings.reach(*roots):
            lines = written.setdefault(at.name, {})
            for name, (statement, _) in self.arguments(at).items():
                if statement:
                    lines.setdefault(statement.key, statement.node)
                elif (node := self._default(at.name, name)) is not None:
                    lines.setdefault(Key((), at.name, name), node)
        nodes = [node for lines in written.values() for node in lines.values()]
        used = {leaf for node in nodes for leaf in self.bindings.mentions(node)}
        macros = {
            statement.key: statement.node
            for name, statement in sorted(self.bindings.macros.items())
            if Macro(name) in used
        }
        sections = [
            f"# {title}\n" + "".join(f"{key} = {node}\n" for key, node in lines.items())
            for title, lines in ({"Macros": macros} | written).items()
            if lines
        ]
        imports = [f"import {name}\n" for name in self.bindings.imports]
        return "\n".join([_HEADER, *imports, *sections])

    def _default(self, configurable: str, name: str) -> Node | None:
        """Return a default in gin's syntax, or None if gin would not read back the same value."""
        parameter = self.bindings.parameters(configurable)[name]
        node = read_value(repr(parameter.default))
        try:
            fits = node is not None and same(self._fitter.fit(node, parameter), parameter.default)
        except Misfit:
            return None
        return node if fits else None


def _shown(value: Any) -> Any:
    return mapped(value, lambda leaf: str(leaf) if isinstance(leaf, Ref) else leaf)
