"""What the statements mean together: which binding wins, what macros stand for, what is reached.

A configurable is *reached* from a verb's function if some chain of `@references` in bound values
leads there. References cannot come from anywhere else, so this is known before anything runs.
Scopes are gin's: `a/X.p = 1` holds for X where it is reached under scope a or a/..., `@a/X`
enters scope a (leaving any other), and a plain `@X` stays in the scope of the binding it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fire_lm.config.signatures import parameters
from fire_lm.config.syntax import REQUIRED, Group, Key, Macro, Node, Ref, Statement, children
from fire_lm.config.wording import did_you_mean
from fire_lm.errors import UserError


@dataclass(frozen=True)
class Place:
    """A configurable in the scope under which it is reached."""

    scope: tuple[str, ...]
    name: str

    def inside(self, scope: tuple[str, ...]) -> bool:
        """Whether bindings for `scope` hold here."""
        return self.scope[: len(scope)] == scope


class Program:
    """All statements, those that win, and what they reach."""

    def __init__(
        self,
        statements: Sequence[Statement],
        configurables: Mapping[str, Callable[..., Any]],
        roots: Sequence[str],
        hints: Mapping[str, str],
        imports: Iterable[str] = (),
    ) -> None:
        self.statements = tuple(statements)
        self.configurables = dict(configurables)
        self.roots = tuple(roots)
        self.hints = dict(hints)
        self.imports = tuple(imports)
        winning = {statement.key: statement for statement in statements}  # later wins
        self.macros = {k.parameter: s for k, s in winning.items() if not k.configurable}
        self.bindings = {k: s for k, s in winning.items() if k.configurable}

    def bound(self, place: Place) -> dict[str, Statement]:
        """The binding of each bound parameter, in signature order; an inner scope wins."""
        found: dict[str, Statement] = {}
        for key in sorted(self.bindings, key=lambda key: len(key.scope)):
            if key.configurable == place.name and place.inside(key.scope):
                found[key.parameter] = self.bindings[key]
        target = self.configurables.get(place.name)
        order = list(parameters(target)) if target is not None else []
        return {
            name: found[name]
            for name in [*order, *sorted(set(found) - set(order))]
            if name in found
        }

    def expand(self, statement: Statement) -> Node:
        """The value of `statement` with every macro but gin.REQUIRED replaced by its value."""
        return self._expand(statement.node, statement, ())

    def _expand(self, node: Node, used_by: Statement, inside: tuple[str, ...]) -> Node:
        if isinstance(node, Group):
            items = tuple(self._expand(item, used_by, inside) for item in node.items)
            return Group(node.kind, items)
        if not isinstance(node, Macro) or node.name == REQUIRED:
            return node
        if node.name in inside:
            raise UserError(f"{used_by.where}: the macro {node.name} refers to itself.")
        if node.name not in self.macros:
            if node.name in self.hints:
                raise UserError(self.hints[node.name])
            raise UserError(
                f"{used_by.where}: {used_by.key} uses %{node.name}, which nothing sets."
                + did_you_mean(node.name, self.macros)
            )
        value = self.macros[node.name]
        return self._expand(value.node, value, (*inside, node.name))

    def target(self, reference: Ref, place: Place) -> Place:
        """What a reference in a value of `place` leads to."""
        return Place(reference.scope or place.scope, reference.name)

    def source(self, statement: Statement) -> Statement:
        """The statement that holds the value: through `= %MACRO`, the innermost macro's own."""
        *_, innermost = self.chain(statement)
        return innermost

    def chain(self, statement: Statement) -> Iterator[Statement]:
        """`statement`, and each macro in turn from which it takes its whole value.

        Raises:
          UserError: a macro on the way refers to itself.
        """
        passed: set[str] = set()
        yield statement
        while isinstance(statement.node, Macro) and (name := statement.node.name) in self.macros:
            if name in passed:
                raise UserError(f"{statement.where}: the macro {name} refers to itself.")
            passed.add(name)
            statement = self.macros[name]
            yield statement

    def reach(self, roots: Iterable[str] | None = None) -> dict[Place, bool]:
        """Every place reached, in reading order; the value: is it called with nothing passed?

        A plain reference is called by code, which may pass what the configuration leaves out;
        `@name()` is called by the configuration itself.
        """

        def values(place: Place) -> Iterator[Node]:
            for statement in self.bound(place).values():
                yield self.expand(statement)

        return self._walk(self.roots if roots is None else roots, values)

    def ever_reached(self) -> dict[Place, bool]:
        """As `reach`, but overridden statements count too."""
        by_macro: dict[str, list[Node]] = {}
        for statement in self.statements:
            if not statement.key.configurable:
                by_macro.setdefault(statement.key.parameter, []).append(statement.node)

        def unfold(node: Node, inside: tuple[str, ...]) -> Iterator[Node]:
            for part in children(node):
                yield part
                if isinstance(part, Macro) and part.name not in inside:
                    for value in by_macro.get(part.name, ()):
                        yield from unfold(value, (*inside, part.name))

        def values(place: Place) -> Iterator[Node]:
            for statement in self.statements:
                key = statement.key
                if key.configurable == place.name and place.inside(key.scope):
                    yield from unfold(statement.node, ())

        return self._walk(self.roots, values)

    def _walk(
        self, roots: Iterable[str], values: Callable[[Place], Iterator[Node]]
    ) -> dict[Place, bool]:
        found: dict[Place, bool] = {}

        def visit(place: Place, called: bool) -> None:
            if found.get(place) or (place in found and not called):
                return
            found[place] = called
            for value in values(place):
                for node in children(value):
                    if isinstance(node, Ref) and node.name in self.configurables:
                        visit(self.target(node, place), node.call)

        for root in roots:
            visit(Place((), root), called=False)
        return found


def is_required(node: Node) -> bool:
    """Whether `node` says %gin.REQUIRED."""
    return any(isinstance(part, Macro) and part.name == REQUIRED for part in children(node))


def key_of(place: Place, parameter: str) -> Key:
    """The key that a user would write for this parameter here."""
    return Key(place.scope, place.name, parameter)
