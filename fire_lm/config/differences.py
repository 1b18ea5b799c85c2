"""The comparison of a configuration with the saved text of an earlier configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fire_lm.config.bindings import Scoped
from fire_lm.config.coercion import same
from fire_lm.config.resolved import Config


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


@dataclass(frozen=True)
class Difference:
    """A value that differs between two configurations.

    `name` is the name with which a user would bind the value. A value that exists in only one of
    the configurations is ABSENT in the other.
    """

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.old!r} -> {self.new!r}"


def differences(old_text: str, new: Config, *, root: str) -> list[Difference]:
    """Return the values of `root` that differ between the saved `old_text` and `new`.

    Macros are expanded, so moving a value into a macro makes no difference. For two different
    references, only the references are listed, not the parameters of their configurables. A
    parameter that the old text does not bind has its present default or, if the class declares one,
    its older default (`as_saved`). A parameter that existed only in older code is ABSENT in `new`.
    """
    old = new.resolve_text(old_text).as_saved()
    old_leaves, new_leaves = old.leaves(root), new.leaves(root)
    both = old.bindings.reach(root).keys() & new.bindings.reach(root).keys()
    found = {}
    for key in [*new_leaves, *(key for key in old_leaves if key not in new_leaves)]:
        name, new_value = new_leaves.get(key, (str(key), ABSENT))
        _, old_value = old_leaves.get(key, ("", ABSENT))
        if Scoped(key.scope, key.configurable) in both and not same(old_value, new_value):
            found[name, repr(old_value), repr(new_value)] = Difference(name, old_value, new_value)
    return list(found.values())
