"""The resolution of statements: winning bindings, values of macros, and reached configurables.

A configurable is *reached* from a root if a chain of `@references` in bound values leads to it.
There are no other references, so the reached configurables are known before any call.
Scopes work as in gin: `a/X.p = 1` applies to X where X is reached under scope a or a/..., `@a/X`
enters scope a (and leaves any other scope), and a plain `@X` stays in the scope in which its
binding applies.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fire_lm.config.configurables import Configurable, parameters
from fire_lm.config.syntax import (
    REQUIRED,
    Key,
    Leaf,
    Macro,
    Node,
    Ref,
    Statement,
    leaves,
    mapped,
    plain,
)
from fire_lm.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Scoped:
    """A configurable and the scope in which it is reached."""

    scope: tuple[str, ...]
    name: str

    def key(self, parameter: str) -> Key:
        """Return the key with which a user would bind `parameter`."""
        return Key(self.scope, self.name, parameter)

    def takes(self, key: Key) -> bool:
        """Return whether a binding of `key` applies to this configurable in this scope."""
        return (self.scope[: len(key.scope)], self.name) == (key.scope, key.configurable)

    def target(self, reference: Ref) -> Scoped:
        """Return the configurable to which `reference` refers in a value bound to this one."""
        return Scoped(reference.scope or self.scope, reference.name)


@dataclass(frozen=True)
class Bindings:
    """The statements of a configuration and the names to which they may refer.

    Attributes:
      statements: All statements, in order of increasing precedence.
      configurables: The functions and classes that can be bound, by name.
      roots: The names of the configurables that commands call.
      hints: The error messages for macros that are used but not set, by macro.
      imports: The modules that gin files or `--import` import.
    """

    statements: tuple[Statement, ...]
    configurables: Mapping[str, Configurable]
    roots: tuple[str, ...]
    hints: Mapping[str, str]
    imports: tuple[str, ...]

    @functools.cached_property
    def stated(self) -> dict[str, list[Statement]]:
        """The statements that set parameters of each configurable, in order; "" has the macros."""
        stated: dict[str, list[Statement]] = {}
        for statement in self.statements:
            stated.setdefault(statement.key.configurable, []).append(statement)
        return stated

    @functools.cached_property
    def macros(self) -> dict[str, Statement]:
        """The winning statement of each macro."""
        return {s.key.parameter: s for s in self.stated.get("", ())}

    @functools.cached_property
    def winning(self) -> dict[Key, Statement]:
        """The winning statement of each parameter."""
        return {s.key: s for s in self.statements if s.key.configurable}

    def extended(self, statements: Sequence[Statement]) -> Bindings:
        """Return these bindings with further statements, which take precedence."""
        return replace(self, statements=(*self.statements, *statements))

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """Return the parameters of a configurable, or {} for an unknown name."""
        return parameters(self.configurables[name]) if name in self.configurables else {}

    def bound(self, at: Scoped) -> dict[str, Statement]:
        """Return the binding of each bound parameter of `at`, in the order of the signature.

        A binding in an inner scope takes precedence.
        """
        own = [s for s in self.stated.get(at.name, ()) if at.takes(s.key)]
        bound = {s.key.parameter: s for s in sorted(own, key=lambda s: len(s.key.scope))}
        return {n: bound[n] for n in [*self.parameters(at.name), *sorted(bound)] if n in bound}

    def expand(self, statement: Statement, users: tuple[Statement, ...] = ()) -> Node:
        """Return the value of `statement` with every macro except gin.REQUIRED replaced."""
        users = (*users, statement)

        def expanded(leaf: Leaf) -> Node:
            if not isinstance(leaf, Macro) or leaf.name == REQUIRED:
                return leaf
            return self.expand(self._macro(leaf.name, users), users)

        node: Node = mapped(statement.node, expanded)
        return node

    def value(self, statement: Statement) -> Any:
        """Return the value of `statement` without macros; references are `Ref`."""
        return plain(self.expand(statement))

    def values(self, at: Scoped) -> dict[str, Any]:
        """Return the value of each bound parameter of `at`, in the order of the signature."""
        return {name: self.value(statement) for name, statement in self.bound(at).items()}

    def _macro(self, name: str, users: Sequence[Statement]) -> Statement:
        """Return the statement that sets the macro `name`, which the last of `users` mentions."""
        where, macro = users[-1].where, self.macros.get(name)
        if macro in users:
            raise UserError(f"{where}: the macro {name} refers to itself")
        if macro:
            return macro
        if name in self.hints:
            raise UserError(self.hints[name])
        hint = did_you_mean(name, self.macros)
        raise UserError(f"{where}: {users[-1].key} uses %{name}, which is not set{hint}")

    def chain(self, statement: Statement) -> list[Statement]:
        """Return `statement` and the statements of the macros that supply its entire value.

        If the value is `%A`, the second element sets A; if that value is `%B`, the third sets B.
        """
        chain = [statement]
        while isinstance(node := chain[-1].node, Macro) and node.name in self.macros:
            chain.append(self._macro(node.name, chain))
        return chain

    def source(self, statement: Statement) -> Statement:
        """Return the last element of `chain`, the statement in which the value is written."""
        return self.chain(statement)[-1]

    def mentions(
        self, node: Node, overridden: bool = False, inside: tuple[str, ...] = ()
    ) -> Iterator[Ref | Macro]:
        """Iterate over the references and macros in a value and in the macros that this value uses.

        With `overridden`, the result includes values of macros that later statements override.
        """
        for leaf in leaves(node):
            if isinstance(leaf, Ref | Macro):
                yield leaf
            if isinstance(leaf, Macro) and leaf.name not in inside:
                set_by = [s for s in self.stated.get("", ()) if s.key.parameter == leaf.name]
                for statement in set_by if overridden else set_by[-1:]:
                    yield from self.mentions(statement.node, overridden, (*inside, leaf.name))

    def references(self, at: Scoped, overridden: bool = False) -> Iterator[tuple[Statement, Ref]]:
        """Iterate over the references in the values bound at `at`, each with its binding.

        With `overridden`, the result includes values that later statements override.
        """
        own = self.stated.get(at.name, ()) if overridden else self.bound(at).values()
        for statement in own:
            if at.takes(statement.key):
                for leaf in self.mentions(statement.node, overridden):
                    if isinstance(leaf, Ref) and leaf.name in self.configurables:
                        yield statement, leaf

    def needed(self, uses: Mapping[str, Collection[str]]) -> set[Key]:
        """Return the bindings that some uses need, including those of macros.

        `uses` maps the names of roots to the used parameters, or to an empty collection if all
        parameters are used.
        """
        statements = [
            statement
            for root, names in uses.items()
            for name, statement in self.bound(Scoped((), root)).items()
            if not names or name in names
        ]
        targets = [
            Scoped((), "").target(leaf)
            for statement in statements
            for leaf in self.mentions(statement.node)
            if isinstance(leaf, Ref) and leaf.name in self.configurables
        ]
        for at in self.reach_from(targets):
            statements += self.bound(at).values()
        macros = {
            Key((), "", leaf.name)
            for statement in statements
            for leaf in self.mentions(statement.node)
            if isinstance(leaf, Macro)
        }
        return {statement.key for statement in statements} | macros

    def reach(self, *roots: str, overridden: bool = False) -> dict[Scoped, bool]:
        """Return the configurables that the given roots, or all roots, reach, in reading order.

        The value of a configurable is True if the configuration itself calls it, as in `@name()`.
        It is False if there are only plain references, so that code calls the configurable and may
        pass arguments that the configuration omits. With `overridden`, references in values that
        later statements override also count.
        """
        scoped = [Scoped((), root) for root in roots or self.roots]
        return self.reach_from(scoped, overridden=overridden)

    def reach_from(
        self, starts: Iterable[Scoped], *, overridden: bool = False
    ) -> dict[Scoped, bool]:
        """Return the configurables that `starts` reach, including themselves; see `reach`."""
        reached: dict[Scoped, bool] = {}

        def visit(at: Scoped, called: bool) -> None:
            if at in reached and (reached[at] or not called):
                return
            reached[at] = called
            for _, reference in self.references(at, overridden):
                visit(at.target(reference), reference.call)

        for start in starts:
            visit(start, called=False)
        return reached
