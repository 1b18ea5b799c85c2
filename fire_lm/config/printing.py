"""A resolved configuration as gin text: what is saved beside a run's results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fire_lm.config.coercion import Fitter, Misfit, same, to_node
from fire_lm.config.program import Place, Program
from fire_lm.config.signatures import Parameter, parameters
from fire_lm.config.syntax import Key, Macro, Node, children

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
    names = _macros_in(program, list(written.values()))
    sections = {"Macros": [f"{name} = {program.macros[name].node}" for name in names], **blocks}
    texts = ["\n".join([f"# {title}", *lines, ""]) for title, lines in sections.items() if lines]
    modules = [f"import {name}\n" for name in program.imports]
    return "\n".join([_HEADER, *modules, *texts])


def _assignments(program: Program, fitter: Fitter, place: Place) -> Iterator[tuple[Key, Node]]:
    """All bindings that hold at `place`, also shadowed ones, and its writable defaults."""
    bound = program.bound(place)
    known = parameters(program.configurables[place.name])
    for name in [*known, *sorted(set(bound) - set(known))]:
        for key in sorted(program.bindings):
            if (key.configurable, key.parameter) == (place.name, name) and place.inside(key.scope):
                yield key, program.bindings[key].node
        if name not in bound:
            node = _default_node(known[name], fitter)
            if node is not None:
                yield Key((), place.name, name), node


def _default_node(parameter: Parameter, fitter: Fitter) -> Node | None:
    node = to_node(parameter.default)
    try:
        if node is not None and same(fitter.fit(node, parameter), parameter.default):
            return node
    except Misfit:
        pass
    return None


def _macros_in(program: Program, nodes: Sequence[Node]) -> list[str]:
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        for node in children(waiting.pop()):
            if isinstance(node, Macro) and node.name in program.macros and node.name not in found:
                found.add(node.name)
                waiting.append(program.macros[node.name].node)
    return sorted(found)
