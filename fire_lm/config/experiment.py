"""A configuration that can be called, printed and asked: `load` and `Config`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fire_lm.config import checks
from fire_lm.config.coercion import Fitter, Misfit, plain, same
from fire_lm.config.files import read_statements
from fire_lm.config.imports import imported
from fire_lm.config.printing import printed
from fire_lm.config.program import Place, Program, is_required, key_of
from fire_lm.config.signatures import NO_DEFAULT, Parameter, parameters
from fire_lm.config.syntax import (
    Key,
    Macro,
    Ref,
    Scalar,
    Statement,
    children,
    parse_file,
)
from fire_lm.errors import UserError


def load(
    gin_files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    *,
    configurables: Mapping[str, Callable[..., Any]],
    roots: Sequence[str],
    hints: Mapping[str, str] | None = None,
    derive: Callable[[Program], Sequence[Statement]] = lambda program: (),
    imports: Sequence[str] = (),
) -> Config:
    """Reads and checks a configuration. Nothing global changes; load as often as you like.

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

    Raises:
      UserError: for anything misspelt, unused, undefined or of the wrong type; it names the
        file and line or the command-line argument.
    """
    statements, modules = read_statements(gin_files, bindings, search_paths)
    modules = dict.fromkeys(imports, "--import") | modules
    known = imported(modules, configurables)
    program = Program(statements, known, roots, hints or {}, modules)
    if derived := derive(program):
        program = Program([*statements, *derived], known, roots, hints or {}, modules)
    checks.check_names(program)
    checks.check_macros(program)
    for macro in program.macros.values():
        program.expand(macro)  # what it refers to must be set
    config = Config(program)
    checks.check_bindings_used(program)
    checks.check_no_circle(program)
    return config


class Config:
    """A resolved configuration. Equal to another if both print the same `text()`."""

    def __init__(self, program: Program, *, strict: bool = True) -> None:
        """`strict=False` is for a saved text of older code: what does not fit stays as it is."""
        self._program = program
        self._strict = strict
        self._fitter = Fitter(program.configurables)
        self._values = {
            key: self._fit(statement, strict) for key, statement in program.bindings.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.text() == other.text()

    __hash__ = None  # type: ignore[assignment]

    def _fit(self, statement: Statement, strict: bool) -> Any:
        node = self._program.expand(statement)
        parameter = self._parameters(statement.key.configurable).get(statement.key.parameter)
        if is_required(node) or parameter is None:
            return plain(node)
        try:
            return self._fitter.fit(node, parameter)
        except Misfit as misfit:
            if not strict:
                return plain(node)
            source = self._program.source(statement)
            wanted = f"{statement.key} expects"
            if source is not statement:
                wanted = f"{source.key} feeds {statement.key}, which expects"
            if inner := [str(node) for node in children(source.node) if isinstance(node, Macro)]:
                wanted = f"{', '.join(inner)} in {wanted}"
            end = "" if str(misfit).endswith("?") else "."
            raise UserError(f"{source.where}: {wanted} {misfit}{end}") from None

    def _parameters(self, name: str) -> Mapping[str, Parameter]:
        target = self._program.configurables.get(name)
        return parameters(target) if target is not None else {}

    # Calling.

    def call(self, root: str, **kwargs: Any) -> Any:
        """Calls a verb's function with its configured values and `kwargs`.

        UserError before the call if something that it needs has no value, or if a binding sets
        what `kwargs` sets to another value (it could never act).
        """
        place = self._complete_root(root, kwargs)
        return self.call_place(place, (), kwargs)

    def check_complete(self, root: str) -> None:
        """Raises UserError if something that `root` needs has no value."""
        self._complete_root(root, {})

    def _complete_root(self, root: str, kwargs: Mapping[str, Any]) -> Place:
        if root not in self._program.roots:
            raise ValueError(f"{root!r} is no root; roots are {self._program.roots}")
        place = Place((), root)
        self._check_free(place, kwargs, self._program.bound(place).values())
        for reached, called in self._program.reach([root]).items():
            if called or reached == place:
                self._check_complete(reached, kwargs if reached == place else {})
        return place

    def call_place(self, place: Place, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls one configurable. What the caller passes wins over files, as in gin.

        A command-line binding that the caller overrules is a UserError.
        """
        target = self._program.configurables[place.name]
        try:
            given = {**inspect.signature(target).bind_partial(*args, **kwargs).arguments, **kwargs}
        except TypeError:  # the call below will say it better
            given = dict(kwargs)
        bound = self._program.bound(place)
        self._check_free(place, given, (b for b in bound.values() if b.from_command_line))
        self._check_complete(place, given)
        return target(*args, **self._bound_values(place, given), **kwargs)

    def _bound_values(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._construct(self._values[statement.key], place)
            for name, statement in self._program.bound(place).items()
            if name not in given
        }

    def _construct(self, value: Any, place: Place) -> Any:
        """`value` with references made into callables, or called; containers are fresh."""
        if isinstance(value, Ref):
            reference = Reference(self, self._program.target(value, place))
            return reference() if value.call else reference
        if isinstance(value, dict):
            return {self._construct(k, place): self._construct(v, place) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._construct(item, place) for item in value)
        return value

    def _check_free(
        self, place: Place, given: Mapping[str, Any], bindings: Iterable[Statement]
    ) -> None:
        """No binding may disagree with what the caller passes, unless it repeats the default."""
        for statement in bindings:
            name = statement.key.parameter
            if name not in given or is_required(self._program.expand(statement)):
                continue
            known = self._parameters(place.name).get(name)
            value = self._values[statement.key]
            if not same(value, given[name]) and not (known and same(value, known.default)):
                raise UserError(
                    f"{statement.where}: this has no effect, the code itself "
                    f"gives {place.name} its {name}; remove it."
                )

    def _check_complete(self, place: Place, given: Mapping[str, Any]) -> None:
        bound = self._program.bound(place)
        for name, parameter in self._parameters(place.name).items():
            if name in given:
                continue
            statement = bound.get(name)
            if statement is None and parameter.default is NO_DEFAULT:
                key = key_of(place, name)
                raise UserError(f"{key} has no value; give one with --gin.{key}=VALUE.")
            if statement is not None and is_required(self._program.expand(statement)):
                source = self._program.source(statement)
                raise UserError(
                    f"{source.where}: {source.key} has no value; "
                    f"give one with --gin.{source.key}=VALUE."
                )

    # Asking.

    def macro(self, name: str) -> Any | None:
        """The value of a macro, as the first parameter that it feeds gets it; None if not set.

        A reference is given as its text, '@FIRE'.
        """
        statement = self._program.macros.get(name)
        if statement is None:
            return None
        for place in self._program.reach():
            for binding in self._program.bound(place).values():
                if statement in self._program.chain(binding):
                    return as_written(self._values[binding.key])
        return as_written(plain(self._program.expand(statement)))

    def leaves(self, root: str) -> dict[Key, tuple[str, Any]]:
        """Every value that `root` reaches, by key: the user's name for it and the value."""
        found = {}
        for place in self._program.reach([root]):
            bound = self._program.bound(place)
            for name, parameter in self._parameters(place.name).items():
                if name not in bound and parameter.default is not NO_DEFAULT:
                    key = key_of(place, name)
                    found[key] = (str(key), parameter.default)
            for name, statement in bound.items():
                label = str(self._program.source(statement).key)
                value = as_written(self._values[statement.key])
                found[key_of(place, name)] = (label, value)
        return found

    def values(self, root: str) -> dict[str, Any]:
        """What `root` itself is given, its defaults too, as far as there is a value."""
        found = {
            name: parameter.default
            for name, parameter in self._parameters(root).items()
            if parameter.default is not NO_DEFAULT
        }
        for name, statement in self._program.bound(Place((), root)).items():
            found[name] = as_written(self._values[statement.key])
            if is_required(self._program.expand(statement)):
                del found[name]
        return found

    def places(self, root: str) -> set[Place]:
        """Every configurable that `root` reaches, with its scope."""
        return set(self._program.reach([root]))

    def bound(self, place: Place) -> dict[str, Statement]:
        """The statement that binds each bound parameter of a configurable."""
        return self._program.bound(place)

    def target(self, place: Place) -> Callable[..., Any]:
        """The function or class that a place names."""
        return self._program.configurables[place.name]

    def with_values(self, values: Mapping[Key, Any], where: str) -> Config:
        """This configuration with other values of some parameters; `where` names their origin.

        Values are numbers, strings, bools or None.
        """
        program = self._program
        statements = [
            Statement(key, Scalar(value, str(value)), where, False) for key, value in values.items()
        ]
        changed = (*program.statements, *statements)
        return Config(
            Program(changed, program.configurables, program.roots, program.hints, program.imports),
            strict=self._strict,
        )

    def as_saved(self) -> Config:
        """What this configuration meant when it was saved, by older code perhaps.

        A class tells in `older_defaults` what it did before a parameter of it existed; a text that
        does not bind the parameter is from that time, since `text` writes all defaults.
        """
        older = {
            key_of(place, name): value
            for place in self._program.reach()
            for name, value in getattr(self.target(place), "older_defaults", {}).items()
            if name not in self.bound(place)
        }
        return self.with_values(older, "an older version") if older else self

    def idle(self, name: str) -> dict[str, tuple[str, Any]]:
        """Where a configurable that no verb reaches is given what: parameter -> (where, value)."""
        if any(place.name == name for place in self._program.reach()):
            return {}
        return {
            key.parameter: (statement.where, as_written(self._values[key]))
            for key, statement in self._program.bindings.items()
            if key.configurable == name
        }

    def resolve_text(self, text: str) -> Config:
        """Another configuration of the same experiment, from a saved text; not checked."""
        statements = [s for s in parse_file(text, "saved config") if isinstance(s, Statement)]
        program = self._program
        return Config(
            Program(statements, program.configurables, program.roots, program.hints), strict=False
        )

    def text(self) -> str:
        """gin text that loads, alone, into an equal Config; the same for equal configurations."""
        return printed(self._program, self._fitter)


class Reference:
    """What `@Name` is to the function it is bound to: Name with its configured values.

    Calling it gives exactly what the class or function gives. Two references to one name in
    one configuration are equal, so they serve as static arguments.
    """

    def __init__(self, config: Config, place: Place) -> None:
        self._config = config
        self._place = place
        self.__wrapped__ = config._program.configurables[place.name]  # for inspect.signature
        self.__name__ = place.name
        self.__doc__ = self.__wrapped__.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._config.call_place(self._place, args, kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reference):
            return NotImplemented
        return self._config is other._config and self._place == other._place

    def __hash__(self) -> int:
        return hash((id(self._config), self._place))

    def __deepcopy__(self, memo: Any) -> Reference:
        return self  # as functions do

    def __repr__(self) -> str:
        return str(Ref(self._place.name, self._place.scope, False))


def as_written(value: Any) -> Any:
    """`value` with references as gin text, '@FIRE'."""
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, dict):
        return {as_written(k): as_written(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_written(item) for item in value)
    return value
