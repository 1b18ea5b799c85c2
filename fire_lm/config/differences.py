"""The comparison of two configurations."""

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


def differences(old: Config, new: Config, *, root: str) -> list[Difference]:
    """Return the values of `root` that differ between two configurations.

    Macros are expanded, so moving a value into a macro makes no difference. For two different
    references, only the references are listed, not the parameters of their configurables.
    """
    old_leaves, new_leaves = old.leaves(root), new.leaves(root)
    both = old.bindings.reach(root).keys() & new.bindings.reach(root).keys()
    changed = {}
    for key in [*new_leaves, *(key for key in old_leaves if key not in new_leaves)]:
        name, new_value = new_leaves.get(key, (str(key), ABSENT))
        _, old_value = old_leaves.get(key, ("", ABSENT))
        if Scoped(key.scope, key.configurable) in both and not same(old_value, new_value):
            changed[name, repr(old_value), repr(new_value)] = Difference(name, old_value, new_value)
    return list(changed.values())
