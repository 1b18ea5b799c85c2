"""The macro ENCODING, which is the name of a run's encoding in tables.

A file in configs/positions/ sets both POSITION and ENCODING. If a later file or the command line
sets another POSITION but no ENCODING, the name from the first file would be wrong. In that case,
this module derives a name from POSITION.
"""

from __future__ import annotations

import itertools

from fire_lm.config.bindings import Bindings, Scoped
from fire_lm.config.coercion import plain
from fire_lm.config.files import SHIPPED
from fire_lm.config.syntax import Key, Node, Ref, Scalar, Statement, leaves, parse_file
from fire_lm.errors import UserError

POSITIONS = SHIPPED / "configs" / "positions"

_ENCODING = Key((), "", "ENCODING")
_POSITION = Key((), "", "POSITION")
_MODEL_POSITION = Key((), "build_decoder", "position")
_MODEL_MIXER = Key((), "build_decoder", "mixer")
_SHARED = Key((), "build_decoder", "share_position")


def check_label(label: object) -> None:
    """Raise UserError for a name that cannot be used in tables."""
    fits = isinstance(label, str) and label.isprintable() and 0 < len(label.strip()) == len(label)
    if label is not None and not (fits and len(str(label)) <= _LONGEST):
        raise UserError(
            f"ENCODING is {label!r}: as a name in tables, it must have 1 to {_LONGEST} printable "
            "characters and no surrounding spaces"
        )


_LONGEST = 250


def derived_label(bindings: Bindings) -> list[Statement]:
    """Return the binding of ENCODING that POSITION and the mixer imply, or [] if none is needed.

    No binding is needed if POSITION is not bound, or if ENCODING was set together with this
    POSITION, or after it. A mixer of all layers (`build_decoder.mixer`) is added to the name,
    unless ENCODING was set together with it, or after it.
    """
    if _MODEL_POSITION not in bindings.winning:
        return []
    position = bindings.source(bindings.winning[_MODEL_POSITION])
    if not _refs(position.node):
        return []
    named, mixer = _named_on_purpose(bindings, position), bindings.winning.get(_MODEL_MIXER)
    name, order = bindings.macros.get(_ENCODING.parameter), bindings.statements.index
    if mixer is not None and name is not None:
        if _file(name) == _file(mixer) or order(name) > order(mixer):
            mixer = None  # the name takes it into account
    if named and mixer is None:
        return []
    label = label_of(bindings, position.node)
    if named and name is not None:
        label = str(plain(bindings.expand(name)))
    if mixer is not None:
        label += f"-mixer-{_in_words(bindings.expand(mixer))}"
    return [Statement(_ENCODING, Scalar(label, label), position.where, False)]


def _named_on_purpose(bindings: Bindings, position: Statement) -> bool:
    name = bindings.macros.get(_ENCODING.parameter)
    if name is None:
        return False
    order = bindings.statements.index
    if _file(name) == _file(position) or order(name) > order(position):
        return True
    beside = [
        statement.node
        for statement in bindings.statements
        if statement.key in (_POSITION, _MODEL_POSITION) and _file(statement) == _file(name)
    ]
    return bool(beside) and str(beside[-1]) == str(position.node)


def _file(statement: Statement) -> str:
    """Return the file of a statement, or "" for any argument on the command line."""
    return "" if statement.from_command_line else statement.where.rpartition(":")[0]


def label_of(bindings: Bindings, position: Node) -> str:
    """Return the name of a POSITION, such as "rope", "fire_g+nope" or "3xrope+nope".

    If a file in configs/positions/ describes POSITION, the result is the name of that file. If the
    encodings of several files alternate across layers, the result consists of the files' names; see
    also `_turn`.
    """
    if label := _matching_file(bindings, position):
        return label
    turns = [_turn(bindings, ref) for ref in _refs(position)]
    names = [name for name, count in turns for _ in range(count)]
    runs = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    return "+".join(f"{count}x{name}" if count > 1 else name for name, count in runs)


def _turn(bindings: Bindings, ref: Ref) -> tuple[str, int]:
    """Return the name and the number of the layers that an element of POSITION describes.

    The name is that of the encoding's file, or of its class if no file describes it, followed by
    the options of `Layers` that are bound, such as "rope-window-64".
    """
    bound = bindings.bound(Scoped(ref.scope, ref.name)) if ref.name == "Layers" else {}
    if "encoding" not in bound:
        return _matching_file(bindings, ref) or ref.name, 1
    nodes = {name: bindings.expand(statement) for name, statement in bound.items()}
    encoding = next(iter(_refs(nodes.pop("encoding"))), ref)
    encoding = Ref(encoding.name, encoding.scope or ref.scope, encoding.call)
    count = getattr(nodes.pop("count", None), "value", 1)
    name = _matching_file(bindings, encoding) or encoding.name
    options = "".join(f"-{option}-{_in_words(node)}" for option, node in nodes.items())
    return name + options, count if isinstance(count, int) else 1


def _in_words(node: Node) -> str:
    return "+".join(ref.name for ref in _refs(node)) or str(node)


def _refs(node: Node) -> list[Ref]:
    return [leaf for leaf in leaves(node) if isinstance(leaf, Ref)]


def _matching_file(bindings: Bindings, position: Node) -> str | None:
    """Return the name of the encoding file with this POSITION whose settings all apply, or None.

    If there are several such files, the file with the most settings is chosen.
    """
    settings: dict[str, int] = {}
    for path in sorted(POSITIONS.glob("*.gin")):
        found = {
            statement.key: statement
            for statement in parse_file(path.read_text(encoding="utf-8"), path.name)
            if isinstance(statement, Statement)
        }
        theirs = found.pop(_POSITION, None)
        found.pop(_ENCODING, None)
        if theirs is None or _refs(theirs.node) != [_plain(ref) for ref in _refs(position)]:
            continue
        if all(_holds(bindings, position, statement) for statement in found.values()):
            settings[path.stem] = len(found)
    return max(settings, key=lambda name: settings[name]) if settings else None


def _plain(ref: Ref) -> Ref:
    return Ref(ref.name, (), False)


def _holds(bindings: Bindings, position: Node, setting: Statement) -> bool:
    """Return whether the configuration contains a file's setting, wherever it was bound."""
    key = setting.key
    scopes = [()] if key == _SHARED else [ref.scope for ref in _refs(position)] or [()]
    bound = [bindings.bound(Scoped(s, key.configurable)).get(key.parameter) for s in scopes]
    return all(one and plain(bindings.expand(one)) == plain(setting.node) for one in bound)
