"""Errors, in one or two plain lines, for what gin lets pass in silence.

A binding is *unused* only if no verb of the experiment could use it.
- A macro is used if any binding refers to it, even an overridden one, or another used macro does.
- A command-line binding is used if a verb reaches its configurable through the winning
  bindings: `--gin.FIRE.width=3` in an experiment without FIRE is an error.
- A binding in a file may also be reached through overridden ones: with positions/fire.gin and then
  positions/rope.gin, the later POSITION wins, and fire.gin's own values are meant to be idle.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable

from fire_lm.config.bindings import Bindings, Scoped
from fire_lm.config.syntax import REQUIRED, Macro, Ref, Statement, leaves
from fire_lm.errors import UserError, did_you_mean, nearest


class UnusedBinding(UserError):
    """A binding of a configurable that the experiment does not use."""


def check_names(bindings: Bindings) -> None:
    """Raise UserError for a configurable, parameter or reference that does not exist."""
    for statement in bindings.statements:
        if statement.key.configurable:
            _check_key(statement, bindings)
        for leaf in leaves(statement.node):
            if isinstance(leaf, Ref) and leaf.name not in bindings.configurables:
                raise UserError(
                    f"{statement.where}: {statement.key} refers to {leaf}, which does not exist."
                    + did_you_mean(_bare(leaf.name, bindings), bindings.configurables, prefix="@")
                )


def _check_key(statement: Statement, bindings: Bindings) -> None:
    where, key = statement.where, statement.key
    if key.configurable not in bindings.configurables:
        keys = {str(s.key) for s in bindings.statements} - {str(key)}
        hint = did_you_mean(_bare(key.configurable, bindings), bindings.configurables)
        if near := nearest(str(key), keys, cutoff=0.85):  # TRAIN.STEPS for TRAIN_STEPS
            hint = f" Did you mean {near}?"
        raise UserError(f"{where}: there is no configurable {key.configurable}.{hint}")
    known = bindings.parameters(key.configurable)
    if key.parameter not in known:
        hint = did_you_mean(key.parameter, known)
        raise UserError(f"{where}: {key.configurable} has no parameter {key.parameter}.{hint}")


def _bare(name: str, bindings: Bindings) -> str:
    """Return a name without the path of its module, as gin knows it: FIRE for positions.FIRE."""
    last = name.rpartition(".")[2]
    return last if last in bindings.configurables else name


def check_macros(bindings: Bindings) -> None:
    """Raise UserError for a macro that nothing uses, or that refers to itself or to none."""
    used = {
        leaf.name
        for statement in bindings.statements
        if statement.key.configurable
        for leaf in bindings.mentions(statement.node, overridden=True)
        if isinstance(leaf, Macro) and leaf.name != REQUIRED
    }
    for statement in bindings.statements:
        name = statement.key.parameter
        if statement.key.configurable or name in used:
            continue
        hint = did_you_mean(name, used)
        targets = [f"{key.configurable}.{key.parameter}" for key in bindings.winning]
        if not nearest(name, used) and (near := nearest(name, [*bindings.configurables, *targets])):
            hint = f" Did you mean {near}?"
        raise UserError(f"{statement.where}: nothing uses the macro {name}.{hint}")
    for statement in bindings.macros.values():
        bindings.expand(statement)


def check_bindings_used(bindings: Bindings) -> None:
    """Raise UserError for a binding that cannot take effect; see the module's docstring."""
    reached, ever = bindings.reach(), bindings.reach(overridden=True)
    for statement in bindings.statements:
        if statement.key.configurable:
            _check_used(statement, reached if statement.from_command_line else ever)


def _check_used(statement: Statement, reached: Iterable[Scoped]) -> None:
    key = statement.key
    if any(at.takes(key) for at in reached):
        return
    if all(at.name != key.configurable for at in reached):
        raise UnusedBinding(
            f"{statement.where}: nothing in this experiment uses {key.configurable}"
            f" (no binding that it runs with refers to @{key.configurable})."
        )
    scope = "/".join(key.scope)
    hint = did_you_mean(scope, {"/".join(at.scope) for at in reached} - {""})
    raise UserError(
        f"{statement.where}: {key.configurable} is never used in the scope {scope}.{hint}"
    )


def check_no_circle(bindings: Bindings) -> None:
    """Raise UserError for `@name()` in a value that name itself needs: it would call itself."""
    calls = {
        at: {at.target(ref): (s, ref) for s, ref in bindings.references(at) if ref.call}
        for at in bindings.reach()
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        needed, by = error.args[1][:2]
        statement, ref = calls[by][needed]
        raise UserError(f"{statement.where}: {statement.key} = {ref} needs itself.") from None
