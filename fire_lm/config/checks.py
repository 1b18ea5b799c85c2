"""Checks that raise one- or two-line errors for mistakes, many of which gin accepts silently.

A binding is *unused* only if no command of the experiment could use it. A command that evaluates a
run also refuses bindings on its command line that it does not use itself (`check_needed`).
- A macro is used if any binding, even an overridden one, or another used macro refers to it.
- A command-line binding is used if a command reaches its configurable through the winning
  bindings: `--gin.FIRE.width=3` in an experiment without FIRE is an error.
- A binding in a file is used even if its configurable is reached only through overridden bindings:
  if positions/rope.gin follows an experiment that includes positions/fire.gin, the later POSITION
  wins, and the values of FIRE in fire.gin have no effect, as intended.
"""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Iterable, Mapping

from fire_lm.config.bindings import Bindings, Scoped
from fire_lm.config.syntax import REQUIRED, Macro, Ref, Statement, leaves
from fire_lm.errors import UserError, did_you_mean, nearest


class UnusedBinding(UserError):
    """The error for a binding of a configurable that the experiment does not use."""


def check_names(bindings: Bindings) -> None:
    """Raise UserError for a configurable, parameter or reference that does not exist."""
    for statement in bindings.statements:
        if statement.key.configurable:
            _check_key(statement, bindings)
        for leaf in leaves(statement.node):
            if isinstance(leaf, Ref) and leaf.name not in bindings.configurables:
                raise UserError(
                    f"{statement.where}: {statement.key} refers to {leaf}, which does not exist"
                    + did_you_mean(_bare(leaf.name, bindings), bindings.configurables, prefix="@")
                )


def _check_key(statement: Statement, bindings: Bindings) -> None:
    where, key = statement.where, statement.key
    if key.configurable not in bindings.configurables:
        keys = {str(s.key) for s in bindings.statements} - {str(key)}
        hint = did_you_mean(_bare(key.configurable, bindings), bindings.configurables)
        if near := nearest(str(key), keys, cutoff=0.85):  # TRAIN.STEPS for TRAIN_STEPS
            hint = f". Did you mean {near}?"
        raise UserError(f"{where}: there is no configurable {key.configurable}{hint}")
    known = bindings.parameters(key.configurable)
    if key.parameter not in known:
        hint = did_you_mean(key.parameter, known)
        raise UserError(f"{where}: {key.configurable} has no parameter {key.parameter}{hint}")


def _bare(name: str, bindings: Bindings) -> str:
    """Remove the module path from a name such as a.b.FIRE if the remainder is a configurable."""
    last = name.rpartition(".")[2]
    return last if last in bindings.configurables else name


def check_macros(bindings: Bindings) -> None:
    """Raise UserError for a macro that is unused or refers to itself or to an unknown macro."""
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
            hint = f". Did you mean {near}?"
        if not used and not hint:
            hint = "\nadd an experiment's gin file, such as --gin_file=configs/runs/quickstart.gin"
        raise UserError(f"{statement.where}: nothing uses the macro {name}{hint}")
    for statement in bindings.macros.values():
        bindings.expand(statement)


def check_bindings_used(bindings: Bindings) -> None:
    """Raise UserError for an unused binding, as the docstring of this module defines the term."""
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
            f" (no effective binding refers to @{key.configurable})"
        )
    scope = "/".join(key.scope)
    hint = did_you_mean(scope, {"/".join(at.scope) for at in reached} - {""})
    raise UserError(
        f"{statement.where}: {key.configurable} is never used in the scope {scope}{hint}"
    )


def check_needed(bindings: Bindings, verb: str, uses: Mapping[str, Collection[str]]) -> None:
    """Raise UnusedBinding for a command-line binding that a verb, with these uses, ignores.

    `uses` maps the names of roots to parameters; see `Bindings.needed`. Bindings in files are not
    checked, because a file serves several commands.
    """
    needed = bindings.needed(uses)
    for statement in bindings.statements:
        if statement.from_command_line and statement.key not in needed:
            raise UnusedBinding(
                f"{statement.where}: {verb} does not use {statement.key}, so this binding has no "
                "effect: remove it"
            )


def check_no_circle(bindings: Bindings) -> None:
    """Raise UserError if calling a configurable, as in `@name()`, would require its own result."""
    calls = {
        at: {at.target(ref): (s, ref) for s, ref in bindings.references(at) if ref.call}
        for at in bindings.reach()
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        needed, by = error.args[1][:2]
        statement, ref = calls[by][needed]
        raise UserError(f"{statement.where}: {statement.key} = {ref} depends on itself") from None
