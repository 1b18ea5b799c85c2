"""The meaning of all statements: which binding wins, the values of macros, what is reached.

A configurable is *reached* from a verb's function if some chain of `@references` in bound values
leads there. References cannot come from anywhere else, so this is known before anything runs.
Scopes are gin's: `a/X.p = 1` holds for X where it is reached under scope a or a/..., `@a/X`
enters scope a (leaving any other), and a plain `@X` stays in the scope of the binding it is in.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fire_lm.config.configurables import Configurable, Parameter, parameters
from fire_lm.config.syntax import REQUIRED, Group, Key, Macro, Node, Ref, Statement, children
from fire_lm.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Place:
    """A configurable in the scope under which it is reached."""

    scope: tuple[str, ...]
    name: str

    def inside(self, scope: tuple[str, ...]) -> bool:
        """Return whether bindings for `scope` hold here."""
        return self.scope[: len(scope)] == scope


@dataclass(frozen=True)
class Program:
    """All statements, the winning ones, and what they reach."""

    statements: tuple[Statement, ...]
    configurables: Mapping[str, Configurable]
    roots: tuple[str, ...]
    hints: Mapping[str, str]
    imports: tuple[str, ...]

    @functools.cached_property
    def set_macros(self) -> dict[str, list[Statement]]:
        """Every statement that sets a macro; the last wins."""
        found: dict[str, list[Statement]] = {}
        for statement in self.statements:
            if not statement.key.configurable:
                found.setdefault(statement.key.parameter, []).append(statement)
        return found

    @functools.cached_property
    def macros(self) -> dict[str, Statement]:
        return {name: statements[-1] for name, statements in self.set_macros.items()}

    @functools.cached_property
    def bindings(self) -> dict[Key, Statement]:
        return {s.key: s for s in self.statements if s.key.configurable}

    def parameters(self, name: str) -> Mapping[str, Parameter]:
        """The parameters of a configurable; none for an unknown name."""
        return parameters(self.configurables[name]) if name in self.configurables else {}

    def bound(self, place: Place) -> dict[str, Statement]:
        """The binding of each bound parameter, in signature order; an inner scope wins."""
        found: dict[str, Statement] = {}
        for key in sorted(self.bindings, key=lambda key: len(key.scope)):
            if key.configurable == place.name and place.inside(key.scope):
                found[key.parameter] = self.bindings[key]
        order = [*self.parameters(place.name), *sorted(found)]
        return {name: found[name] for name in order if name in found}

    def expand(self, statement: Statement) -> Node:
        """The value of `statement` with every macro but gin.REQUIRED replaced by its value."""
        return self._expand(statement.node, (statement,))

    def _expand(self, node: Node, chain: tuple[Statement, ...]) -> Node:
        if isinstance(node, Group):
            return Group(node.kind, tuple(self._expand(item, chain) for item in node.items))
        if not isinstance(node, Macro) or node.name == REQUIRED:
            return node
        macro = self._follow(node, chain)
        return self._expand(macro.node, (*chain, macro))

    def _follow(self, macro: Macro, chain: tuple[Statement, ...]) -> Statement:
        """Find the statement that sets a macro; `chain` are the statements that led to it."""
        user = chain[-1]
        if macro.name in self.macros:
            if self.macros[macro.name] in chain:
                raise UserError(f"{user.where}: the macro {macro.name} refers to itself.")
            return self.macros[macro.name]
        if macro.name in self.hints:
            raise UserError(self.hints[macro.name])
        raise UserError(
            f"{user.where}: {user.key} uses %{macro.name}, which nothing sets."
            + did_you_mean(macro.name, self.macros)
        )

    def chain(self, statement: Statement) -> tuple[Statement, ...]:
        """`statement`, and each macro in turn from which it takes its whole value."""
        found: tuple[Statement, ...] = (statement,)
        while isinstance(node := found[-1].node, Macro) and node.name in self.macros:
            found = (*found, self._follow(node, found))
        return found

    def target(self, reference: Ref, place: Place) -> Place:
        """The place that a reference in a value of `place` leads to."""
        return Place(reference.scope or place.scope, reference.name)

    def source(self, statement: Statement) -> Statement:
        """The statement that holds the value: through `= %MACRO`, the innermost macro's own."""
        return self.chain(statement)[-1]

    def nodes(self, values: Iterable[Node], overridden: bool = False) -> Iterator[Node]:
        """Every node in `values` and in the macros they mention, in reading order, a macro once.

        With `overridden`, also in the values of macros that later statements replace.
        """
        seen: set[str] = set()

        def unfold(value: Node) -> Iterator[Node]:
            for node in children(value):
                yield node
                if isinstance(node, Macro) and node.name not in seen:
                    seen.add(node.name)
                    statements = self.set_macros.get(node.name, [])
                    for statement in statements if overridden else statements[-1:]:
                        yield from unfold(statement.node)

        for value in values:
            yield from unfold(value)

    def reach(
        self, roots: Iterable[str] | None = None, overridden: bool = False
    ) -> dict[Place, bool]:
        """Every place reached, in reading order; the value: is it called with nothing passed?

        A plain reference is called by code, which may pass what the configuration leaves out;
        `@name()` is called by the configuration itself. With `overridden`, what statements refer
        to that others overrule counts too.
        """
        found: dict[Place, bool] = {}

        def visit(place: Place, called: bool) -> None:
            if found.get(place) or (place in found and not called):
                return
            found[place] = called
            statements = self.statements if overridden else self.bound(place).values()
            values = [s.node for s in statements if holds_at(s, place)]
            for node in self.nodes(values, overridden):
                if isinstance(node, Ref) and node.name in self.configurables:
                    visit(self.target(node, place), node.call)

        for root in self.roots if roots is None else roots:
            visit(Place((), root), called=False)
        return found


def holds_at(statement: Statement, place: Place) -> bool:
    """Return whether a statement binds a parameter of this configurable in this scope."""
    return statement.key.configurable == place.name and place.inside(statement.key.scope)


def is_required(node: Node) -> bool:
    """Return whether `node` is %gin.REQUIRED."""
    return any(isinstance(part, Macro) and part.name == REQUIRED for part in children(node))


def key_of(place: Place, parameter: str) -> Key:
    """The key that a user would write for this parameter here."""
    return Key(place.scope, place.name, parameter)
