"""A resolved configuration as gin text: what is saved beside a run's results."""

from __future__ import annotations

from collections.abc import Iterator

from fire_lm.config.coercion import Fitter, Misfit, same
from fire_lm.config.configurables import Parameter
from fire_lm.config.program import Place, Program, holds_at
from fire_lm.config.syntax import Key, Macro, Node, read_value

_HEADER = """\
# The configuration as resolved: every macro, and every parameter of whatever a verb can reach.
# Read it again with --gin_file=THIS_FILE.
"""


def printed(program: Program, fitter: Fitter) -> str:
    """All macros in use and every parameter of every configurable that a root reaches.

    Bound values are as written, others have their default where gin can write it. What has
    neither is passed by the caller, and left out.
    """
    blocks: dict[str, list[str]] = {}
    written: dict[Key, Node] = {}
    for place in program.reach():
        lines = blocks.setdefault(place.name, [])
        for key, node in _assignments(program, fitter, place):
            if key not in written:
                written[key] = node
                lines.append(f"{key} = {node}")
    used = {node.name for node in program.nodes(written.values()) if isinstance(node, Macro)}
    macros = [f"{name} = {program.macros[name].node}" for name in sorted(used & {*program.macros})]
    sections = {"Macros": macros, **blocks}
    texts = ["\n".join([f"# {title}", *lines, ""]) for title, lines in sections.items() if lines]
    modules = [f"import {name}\n" for name in program.imports]
    return "\n".join([_HEADER, *modules, *texts])


def _assignments(program: Program, fitter: Fitter, place: Place) -> Iterator[tuple[Key, Node]]:
    """All bindings that hold at `place`, also shadowed ones, and its writable defaults."""
    holding = sorted((k, s.node) for k, s in program.bindings.items() if holds_at(s, place))
    bound, known = program.bound(place), program.parameters(place.name)
    for name in [*known, *(name for name in bound if name not in known)]:
        yield from ((key, node) for key, node in holding if key.parameter == name)
        if name not in bound and (node := _default_node(known[name], fitter)) is not None:
            yield Key((), place.name, name), node


def _default_node(parameter: Parameter, fitter: Fitter) -> Node | None:
    """The default as gin would write it, if it reads it back as the same value."""
    node = read_value(repr(parameter.default))
    try:
        if node is not None and same(fitter.fit(node, parameter), parameter.default):
            return node
    except Misfit:
        pass
    return None
