"""The configuration beside a run's results: saved at every start, compared at the next."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from fire_lm.config.coercion import same
from fire_lm.config.experiment import Config
from fire_lm.errors import UserError, first_line


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


def save(config: Config, workdir: Any) -> Any:
    """Write config.gin, or the first free of config_1.gin, config_2.gin, ...; returns its path.

    `workdir` is a local or gs:// folder, made if absent. No file is ever overwritten, and a
    crash leaves no half-written one. In a job of many processes only one may call this.
    """
    from etils import epath

    from fire_lm.storage import create_text, make_folder

    folder = epath.Path(workdir)
    try:
        make_folder(folder)
        names = itertools.chain(["config.gin"], (f"config_{i}.gin" for i in itertools.count(1)))
        path = next(folder / name for name in names if create_text(folder / name, config.text()))
    except OSError as error:
        raise UserError(
            f"{workdir}: cannot write the configuration there: {first_line(error)}"
        ) from None
    return path


def differences(old_text: str, new: Config, *, root: str) -> list[Difference]:
    """The values that `root` would see differently under the saved `old_text`.

    Macros are expanded, so a value may move into a macro without a difference. Of two
    different references only the reference is listed, not the parameters behind each. What
    the old text leaves out has today's default, or what the class did before (`as_saved`);
    what it knew and the code no longer does, is ABSENT in the new.
    """
    old = new.resolve_text(old_text).as_saved()
    old_leaves, new_leaves = old.leaves(root), new.leaves(root)
    both = old.program.reach([root]).keys() & new.program.reach([root]).keys()
    found: dict[tuple[str, str, str], Difference] = {}
    for key in [*new_leaves, *(key for key in old_leaves if key not in new_leaves)]:
        if not any(p.name == key.configurable and p.scope == key.scope for p in both):
            continue
        name, new_value = new_leaves.get(key, (str(key), ABSENT))
        _, old_value = old_leaves.get(key, ("", ABSENT))
        if not same(old_value, new_value):
            difference = Difference(name, old_value, new_value)
            found.setdefault((name, repr(old_value), repr(new_value)), difference)
    return list(found.values())
