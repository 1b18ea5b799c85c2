"""The strict layer: what gin lets pass in silence is an error here, in one or two plain lines.

When is a binding *unused*? Only if no verb of the experiment could use it.
- A macro is used if any binding refers to it, also an overridden one, or another used macro.
- A command-line binding is used if its configurable is reached from a verb by the winning
  bindings: `--gin.FIRE.width=3` in an experiment without FIRE is an error that says so.
- A binding in a file may also be reached by overridden ones: with positions/fire.gin and then
  positions/rope.gin the later POSITION wins, and fire.gin's own values are meant to be idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from fire_lm.config.program import Place, Program
from fire_lm.config.syntax import REQUIRED, Macro, Ref, Statement, children
from fire_lm.errors import UserError, did_you_mean, nearest


class UnusedBinding(UserError):
    """A binding of a configurable that the experiment does not use."""


def check_names(program: Program) -> None:
    """Every configurable, parameter and reference that is named must exist."""
    for statement in program.statements:
        _check_key(statement, program)
        for node in children(statement.node):
            if isinstance(node, Ref) and node.name not in program.configurables:
                raise UserError(
                    f"{statement.where}: {statement.key} refers to {node}, which does not exist."
                    + did_you_mean(_bare(node.name, program), program.configurables, prefix="@")
                )


def _check_key(statement: Statement, program: Program) -> None:
    key = statement.key
    if not key.configurable:
        return
    if key.configurable not in program.configurables:
        keys = {str(s.key) for s in program.statements} - {str(key)}
        near = nearest(str(key), keys, cutoff=0.85)  # TRAIN.STEPS for TRAIN_STEPS
        hint = f" Did you mean {near}?" if near else ""
        hint = hint or did_you_mean(_bare(key.configurable, program), program.configurables)
        raise UserError(f"{statement.where}: there is no configurable {key.configurable}.{hint}")
    known = program.parameters(key.configurable)
    if key.parameter not in known:
        raise UserError(
            f"{statement.where}: {key.configurable} has no parameter {key.parameter}."
            + did_you_mean(key.parameter, known)
        )


def _bare(name: str, program: Program) -> str:
    """A name without the path of its module, as gin knows it: FIRE for positions.FIRE."""
    last = name.rpartition(".")[2]
    return last if last in program.configurables else name


def check_macros(program: Program) -> None:
    """Every macro that is set must be used, and every one that is used must be set."""
    bindings = [s.node for s in program.statements if s.key.configurable]
    mentioned = {node.name for node in program.nodes(bindings, True) if isinstance(node, Macro)}
    used = mentioned - {REQUIRED}
    for name, statements in program.set_macros.items():
        if name in used:
            continue
        hint = did_you_mean(name, used)
        targets = [f"{k.configurable}.{k.parameter}" for k in program.bindings]
        if not nearest(name, used) and (near := nearest(name, [*program.configurables, *targets])):
            hint = f" Did you mean {near}?"
        raise UserError(f"{statements[0].where}: nothing uses the macro {name}.{hint}")
    for macro in program.macros.values():
        program.expand(macro)


def check_bindings_used(program: Program) -> None:
    """Every binding must be able to take effect; see the module's docstring."""
    reached, ever = program.reach(), program.reach(overridden=True)
    for statement in program.statements:
        if statement.key.configurable:
            _check_used(statement, reached if statement.from_command_line else ever)


def _check_used(statement: Statement, places: Iterable[Place]) -> None:
    key = statement.key
    here = [place for place in places if place.name == key.configurable]
    if any(place.inside(key.scope) for place in here):
        return
    if not here:
        raise UnusedBinding(
            f"{statement.where}: nothing in this experiment uses {key.configurable}"
            f" (no binding that it runs with refers to @{key.configurable})."
        )
    scopes = {"/".join(place.scope) for place in places} - {""}
    scope = "/".join(key.scope)
    raise UserError(
        f"{statement.where}: {key.configurable} is never used in the scope {scope}."
        + did_you_mean(scope, scopes)
    )


def check_no_circle(program: Program) -> None:
    """`@name()` inside what name itself needs would call itself for ever."""
    finished: set[Place] = set()

    def visit(place: Place, inside: tuple[Place, ...]) -> None:
        for statement in () if place in finished else program.bound(place).values():
            for node in program.nodes([statement.node]):
                if isinstance(node, Ref) and node.call:
                    target = program.target(node, place)
                    if target in inside:
                        raise UserError(
                            f"{statement.where}: {statement.key} = {node} needs itself."
                        )
                    visit(target, (*inside, target))
        finished.add(place)

    for place in program.reach():
        visit(place, (place,))
