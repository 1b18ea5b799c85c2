"""The macro ENCODING, which is the name of a run's encoding in tables.

A file in configs/positions/ sets both POSITION and ENCODING. If a later file or the command line
sets another POSITION but no ENCODING, the name from the first file would be wrong. In that case,
this module derives a name from POSITION.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from fire_lm.config import SHIPPED, Bindings, Key, Ref, Scoped, Statement, values_in
from fire_lm.config.syntax import Macro
from fire_lm.errors import UserError

POSITIONS = SHIPPED / "configs" / "positions"

_ENCODING, _POSITION = Key((), "", "ENCODING"), Key((), "", "POSITION")
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
    unset = isinstance(position.node, Macro)
    encodings = [] if unset else list(_references(bindings.value(position)))
    if not encodings:
        return []
    named, mixer = _named_on_purpose(bindings, position), bindings.winning.get(_MODEL_MIXER)
    name, order = bindings.macros.get(_ENCODING.parameter), bindings.statements.index
    if mixer is not None and name is not None:
        if name.file == mixer.file or order(name) > order(mixer):
            mixer = None  # the name takes it into account
    if named and mixer is None:
        return []
    label = (
        str(bindings.value(name)) if named and name is not None else label_of(bindings, encodings)
    )
    if mixer is not None:
        label += f"-mixer-{_in_words(bindings, bindings.value(mixer))}"
    return [Statement.from_value("ENCODING", label, position.where)]


def _named_on_purpose(bindings: Bindings, position: Statement) -> bool:
    name = bindings.macros.get(_ENCODING.parameter)
    if name is None:
        return False
    order = bindings.statements.index
    if name.file == position.file or order(name) > order(position):
        return True
    beside = [
        statement.value
        for statement in bindings.statements
        if statement.key in (_POSITION, _MODEL_POSITION) and statement.file == name.file
    ]
    return bool(beside) and beside[-1] == position.value


def label_of(bindings: Bindings, encodings: list[Ref]) -> str:
    """Return the name of a POSITION, such as "rope", "fire_g+nope" or "3xrope+nope".

    If a file in configs/positions/ describes the encodings in POSITION, the result is the name of
    that file. If the encodings of several files alternate across layers, the result consists of the
    files' names; see also `_turn`.
    """
    if label := _matching_file(bindings, encodings):
        return label
    turns = [_turn(bindings, encoding) for encoding in encodings]
    names = [name for name, count in turns for _ in range(count)]
    runs = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    return "+".join(f"{count}x{name}" if count > 1 else name for name, count in runs)


def _turn(bindings: Bindings, turn: Ref) -> tuple[str, int]:
    """Return the name and the number of the layers that an element of POSITION describes.

    The name is that of the encoding, followed by the options of `Layers` that differ from their
    defaults, such as "rope-window-64".
    """
    options = _changed(bindings, turn) if turn.name == "Layers" else {}
    if "encoding" not in options:
        return _name(bindings, turn), 1
    encoding = next(_references(options.pop("encoding")), turn)
    encoding = Ref(encoding.name, encoding.scope or turn.scope, encoding.call)
    count = options.pop("count", 1)
    words = _options(bindings, options, turn.scope)
    return _name(bindings, encoding) + words, count if isinstance(count, int) else 1


def _name(bindings: Bindings, encoding: Ref) -> str:
    """Return the name of an encoding's file, or of its class if no file describes it.

    The encodings that the class combines follow, such as "Together-first-fire-second-fox".
    """
    if name := _matching_file(bindings, [encoding]):
        return name
    changed = _changed(bindings, encoding)
    parts = {
        field: Ref(part.name, part.scope or encoding.scope, False)
        for field in bindings.parameters(encoding.name)
        if isinstance(part := changed.get(field), Ref) and not part.call
    }
    words = (f"-{field}-{_name(bindings, x)}" for field, x in parts.items() if x != encoding)
    return encoding.name + "".join(words)


def _options(bindings: Bindings, options: Mapping[str, Any], scope: tuple[str, ...] = ()) -> str:
    return "".join(f"-{name}-{_in_words(bindings, x, scope)}" for name, x in options.items())


def _in_words(bindings: Bindings, value: Any, scope: tuple[str, ...] = ()) -> str:
    """Return a value as part of a name; references are followed by their options.

    `scope` is that of references without one.
    """
    refs = [Ref(ref.name, ref.scope or scope, ref.call) for ref in _references(value)]
    names = (ref.name + _options(bindings, _changed(bindings, ref), ref.scope) for ref in refs)
    return "+".join(names) or str(value)


def _changed(bindings: Bindings, ref: Ref) -> dict[str, Any]:
    """Return the bound parameters of a reference whose values differ from their defaults."""
    bound = bindings.values(Scoped(ref.scope, ref.name))
    defaults = {name: p.default for name, p in bindings.parameters(ref.name).items()}
    return {name: value for name, value in bound.items() if value != defaults.get(name)}


def _references(value: Any) -> Iterator[Ref]:
    """Iterate over the references in a value."""
    for item in value if isinstance(value, list | tuple) else ():
        yield from _references(item)
    if isinstance(value, Ref):
        yield value


@functools.cache
def _described() -> Mapping[str, tuple[list[Ref], dict[Key, Any]]]:
    """The encodings and the other settings of each file in configs/positions/, by its name."""
    values = {path.stem: values_in(path) for path in sorted(POSITIONS.glob("*.gin"))}
    return {
        name: (
            list(_references(of_file[_POSITION])),
            {key: of_file[key] for key in of_file if key not in (_POSITION, _ENCODING)},
        )
        for name, of_file in values.items()
        if _POSITION in of_file
    }


def _matching_file(bindings: Bindings, encodings: list[Ref]) -> str | None:
    """Return the name of the file with these encodings whose settings all apply, or None.

    If there are several such files, the file with the most settings is chosen.
    """
    scopes = [encoding.scope for encoding in encodings]

    def applies(key: Key, value: Any) -> bool:
        """Return whether each encoding has a file's setting, wherever it was bound."""
        at = [Scoped(scope, key.configurable) for scope in ([()] if key == _SHARED else scopes)]
        bound = [bindings.bound(scoped).get(key.parameter) for scoped in at]
        return all(binding and bindings.value(binding) == value for binding in bound)

    plain = [Ref(encoding.name, (), False) for encoding in encodings]
    fitting = {
        name: len(settings)
        for name, (described, settings) in _described().items()
        if described == plain and all(applies(*setting) for setting in settings.items())
    }
    return max(fitting, key=lambda name: fitting[name]) if fitting else None
