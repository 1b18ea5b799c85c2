"""Comparison of a configuration with the saved text of an earlier one."""

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
    """A value that differs; `name` as the user would bind it. ABSENT: only the other has it."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.old!r} -> {self.new!r}"


def differences(old_text: str, new: Config, *, root: str) -> list[Difference]:
    """Return the values that `root` would see differently under the saved `old_text`.

    Macros are expanded, so a value may move into a macro without a difference. Of two
    different references only the reference is listed, not the parameters behind each. What
    the old text leaves out has today's default, or what the class did before (`as_saved`);
    what it knew and the code no longer does, is ABSENT in the new.
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
