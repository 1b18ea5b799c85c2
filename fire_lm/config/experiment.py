"""A configuration that can be called, printed and asked: `load` and `Config`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fire_lm.config import checks
from fire_lm.config.coercion import Fitter, Misfit, plain, same
from fire_lm.config.configurables import NO_VALUE, Configurable, imported
from fire_lm.config.files import read_statements
from fire_lm.config.printing import printed
from fire_lm.config.program import Place, Program, is_required, key_of
from fire_lm.config.syntax import Key, Macro, Ref, Scalar, Statement, children, parse_file
from fire_lm.errors import UserError


def load(
    gin_files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    *,
    configurables: Mapping[str, Configurable],
    roots: Sequence[str],
    hints: Mapping[str, str] | None = None,
    derive: Callable[[Program], Sequence[Statement]] = lambda program: (),
    imports: Sequence[str] = (),
    first: Mapping[str, str] | None = None,
) -> Config:
    """Read and check a configuration. Nothing global changes; load as often as you like.

    Args:
      gin_files: names or paths (also gs://), later ones win. Looked for under `search_paths`,
        then '.', then the repository root.
      bindings: command-line bindings `NAME=VALUE`, which win over the files. NAME is a macro,
        `Configurable.parameter` or `scope/Configurable.parameter`. VALUE is a gin value, or
        anything else as a plain string.
      search_paths: where gin files and includes are looked for first.
      configurables: what gin files may name: undecorated functions and classes. A binding acts
        where the class is reached through an @reference, never on a direct call in Python.
      roots: the names of the verbs' functions, which `Config.call` can call.
      hints: by macro name, the whole error message if that macro is needed and nothing sets it.
      derive: statements that follow from all others, and win over them.
      imports: modules of the user, as `import` lines in a file name them: their dataclasses are
        configurables, too.
      first: texts by their names, read before the files, which win over them.

    Raises:
      UserError: for anything misspelt, unused, undefined or of the wrong type; it names the
        file and line or the command-line argument.
    """
    statements, modules = read_statements(gin_files, bindings, search_paths, first)
    modules = dict.fromkeys(imports, "--import") | modules
    known = imported(modules, configurables)
    program = Program(tuple(statements), known, tuple(roots), hints or {}, tuple(modules))
    program = _with(program, derive(program))
    checks.check_names(program)
    checks.check_macros(program)
    config = Config(program)
    checks.check_bindings_used(program)
    checks.check_no_circle(program)
    return config


def _with(program: Program, statements: Sequence[Statement]) -> Program:
    """`program` with statements that win over its own."""
    return dataclasses.replace(program, statements=(*program.statements, *statements))


class Config:
    """A resolved configuration. Equal to another if both print the same `text()`."""

    def __init__(self, program: Program, *, strict: bool = True) -> None:
        """`strict=False` is for a saved text of older code: what does not fit stays as it is."""
        self.program = program
        self._strict = strict
        self._fitter = Fitter(program.configurables)
        self._values = {key: self._fit(binding) for key, binding in program.bindings.items()}
        self._callables: dict[Place, Configurable] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.text() == other.text()

    __hash__ = None  # type: ignore[assignment]

    def _fit(self, statement: Statement) -> Any:
        node = self.program.expand(statement)
        parameters = self.program.parameters(statement.key.configurable)
        if is_required(node):
            return NO_VALUE
        if statement.key.parameter not in parameters:  # of older code
            return plain(node)
        try:
            return self._fitter.fit(node, parameters[statement.key.parameter])
        except Misfit as misfit:
            if not self._strict:
                return plain(node)
            source = self.program.source(statement)
            wanted = f"{statement.key} expects"
            if source is not statement:
                wanted = f"{source.key} feeds {statement.key}, which expects"
            if inner := [str(node) for node in children(source.node) if isinstance(node, Macro)]:
                wanted = f"{', '.join(inner)} in {wanted}"
            end = "" if str(misfit).endswith("?") else "."
            raise UserError(f"{source.where}: {wanted} {misfit}{end}") from None

    def _settings(self, place: Place) -> dict[str, tuple[Statement | None, Any]]:
        """Map each parameter to the statement that binds it, if any, and its value or NO_VALUE."""
        unbound: dict[str, tuple[Statement | None, Any]] = {
            name: (None, parameter.default)
            for name, parameter in self.program.parameters(place.name).items()
        }
        bound = {name: (s, self._values[s.key]) for name, s in self.program.bound(place).items()}
        return unbound | bound

    # Calling.

    def call(self, root: str, **kwargs: Any) -> Any:
        """Call a verb's function with its configured values and `kwargs`.

        UserError before the call if something that it needs has no value, or if a binding sets
        what `kwargs` sets to another value (it could never act).
        """
        self.check_complete(root, kwargs)
        return self.call_place(Place((), root), (), kwargs)

    def check_complete(self, root: str, given: Mapping[str, Any] | None = None) -> None:
        """Raises UserError if something that `root` needs has no value, nor is in `given`."""
        if root not in self.program.roots:
            raise ValueError(f"{root!r} is no root; roots are {self.program.roots}")
        self._check(Place((), root), given or {}, heed_files=True)
        for place, called in self.program.reach([root]).items():
            if called:
                self._check(place, {}, heed_files=True)

    def call_place(self, place: Place, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call one configurable. What the caller passes wins over files, as in gin.

        A command-line binding that the caller overrules is a UserError.
        """
        target = self.program.configurables[place.name]
        try:
            given = {**inspect.signature(target).bind_partial(*args, **kwargs).arguments, **kwargs}
        except TypeError:  # the call below will say it better
            given = dict(kwargs)
        self._check(place, given, heed_files=False)
        bound = {
            name: self._construct(value, place)
            for name, (statement, value) in self._settings(place).items()
            if statement is not None and name not in given
        }
        return target(*args, **bound, **kwargs)

    def _check(self, place: Place, given: Mapping[str, Any], heed_files: bool) -> None:
        """Every parameter must have a value, and no binding may disagree with what the caller
        passes, unless it repeats the default; one in a file may, without `heed_files`."""
        parameters = self.program.parameters(place.name)
        for name, (statement, value) in self._settings(place).items():
            if value is NO_VALUE and name not in given:
                source = self.program.source(statement) if statement else None
                key, where = (
                    (source.key, f"{source.where}: ") if source else (key_of(place, name), "")
                )
                raise UserError(f"{where}{key} has no value; give one with --gin.{key}=VALUE.")
            if statement is None or name not in given or value is NO_VALUE:
                continue
            harmless = same(value, given[name]) or same(value, parameters[name].default)
            if not harmless and (heed_files or statement.from_command_line):
                raise UserError(
                    f"{statement.where}: this has no effect, the code itself "
                    f"gives {place.name} its {name}; remove it."
                )

    def _construct(self, value: Any, place: Place) -> Any:
        """`value` with references made into callables, or called; containers are fresh."""

        def follow(ref: Ref) -> Any:
            made = self._callable(self.program.target(ref, place))
            return made() if ref.call else made

        return _replaced(value, follow)

    def _callable(self, place: Place) -> Configurable:
        """Return what `@Name` stands for in a binding: Name with its configured values.

        It is one object for each place, so it serves as a static argument.
        """
        if place not in self._callables:

            @functools.wraps(self.program.configurables[place.name], updated=())
            def configured(*args: Any, **kwargs: Any) -> Any:
                return self.call_place(place, args, kwargs)

            self._callables[place] = configured
        return self._callables[place]

    # Asking.

    def macro(self, name: str) -> Any | None:
        """The value of a macro, as the first parameter that it feeds gets it; None if not set.

        A reference is given as its text, '@FIRE'.
        """
        macro = self.program.macros.get(name)
        if macro is None:
            return None
        for place in self.program.reach():
            for binding, value in self._settings(place).values():
                if binding and value is not NO_VALUE and macro in self.program.chain(binding):
                    return _replaced(value, str)
        return _replaced(plain(self.program.expand(macro)), str)

    def leaves(self, root: str) -> dict[Key, tuple[str, Any]]:
        """Every value that `root` reaches, by key: the user's name for it and the value.

        Of each configurable, its defaults come first.
        """
        found = {}
        for place in self.program.reach([root]):
            settings = self._settings(place).items()
            for name, (statement, value) in sorted(settings, key=lambda s: s[1][0] is not None):
                key = key_of(place, name)
                label = self.program.source(statement).key if statement else key
                if value is not NO_VALUE:
                    found[key] = (str(label), _replaced(value, str))
        return found

    def values(self, root: str) -> dict[str, Any]:
        """The values that `root` itself is called with, defaults included."""
        settings = self._settings(Place((), root)).items()
        return {name: _replaced(v, str) for name, (_, v) in settings if v is not NO_VALUE}

    def with_values(self, values: Mapping[Key, Any], where: str) -> Config:
        """This configuration with other values of some parameters; `where` names their origin.

        Values are numbers, strings, bools or None.
        """
        statements = [
            Statement(key, Scalar(value, str(value)), where, False) for key, value in values.items()
        ]
        return Config(_with(self.program, statements), strict=self._strict)

    def as_saved(self) -> Config:
        """This configuration with the meaning that it had when it was saved, perhaps by older code.

        A class tells in `older_defaults` what it did before a parameter of it existed; a text that
        does not bind the parameter is from that time, since `text` writes all defaults.
        """
        older = {
            key_of(place, name): value
            for place in self.program.reach()
            for name, value in getattr(
                self.program.configurables[place.name], "older_defaults", {}
            ).items()
            if name not in self.program.bound(place)
        }
        return self.with_values(older, "an older version") if older else self

    def idle(self, name: str) -> dict[str, tuple[str, Any]]:
        """The bindings of a configurable that no verb reaches: parameter -> (where, value)."""
        if any(place.name == name for place in self.program.reach()):
            return {}
        return {
            key.parameter: (statement.where, _replaced(self._values[key], str))
            for key, statement in self.program.bindings.items()
            if key.configurable == name
        }

    def resolve_text(self, text: str) -> Config:
        """Another configuration of the same experiment, from a saved text; not checked."""
        statements = [s for s in parse_file(text, "saved config") if isinstance(s, Statement)]
        return Config(dataclasses.replace(self.program, statements=tuple(statements)), strict=False)

    def text(self, root: str | None = None) -> str:
        """gin text that loads, alone, into an equal Config; the same for equal configurations.
        With `root`, of what that alone reaches."""
        program = self.program
        if root is not None:
            program = dataclasses.replace(program, roots=(root,))
        return printed(program, self._fitter)


def _replaced(value: Any, change: Callable[[Ref], Any]) -> Any:
    """`value` with what `change` gives for each reference in it."""
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, change) for item in value)
    return change(value) if isinstance(value, Ref) else value
