"""The models of scores on text-to-text tasks: which runs a line of a table may combine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fire_lm.reporting.task_columns import Column, title_of
from fire_lm.results.folder import RunFacts
from fire_lm.results.tables import TaskScore
from fire_lm.tasks.suites import TASKS


@dataclasses.dataclass(frozen=True)
class Model:
    """The model of a row: its name, and `TaskLine.finetuned_on`."""

    name: str
    finetuned_on: str

    def __str__(self) -> str:
        if not self.finetuned_on:
            return self.name
        name = self.name.replace(", finetuned", "", 1)
        return f"{name}, finetuned on {title_of(self.finetuned_on)}"


def models_of(
    placed: Mapping[TaskScore, Column], names: Mapping[str, str], facts: Mapping[str, RunFacts]
) -> dict[TaskScore, Model]:
    """Return the model of each row; `names` has the name of each run's model.

    Runs share this name if they were finetuned on different tasks, so it alone does not say whether
    their scores on one task belong together.
    """
    others = {row: _finetuned_on(facts[row.run]) for row in placed}
    others = {row: "" if other == placed[row].task else other for row, other in others.items()}
    of_name: dict[str, set[str]] = {}
    for row, other in others.items():
        of_name.setdefault(names[row.run], set()).add(other)
    tasks = {*TASKS, *(column.task for column in placed.values())}
    return {
        row: Model(name, other * (other in tasks or len(of_name[name]) > 1))
        for row, other in others.items()
        for name in [names[row.run]]
    }


def _finetuned_on(facts: RunFacts) -> str:
    """Return the task or mixture on which a run was finetuned, or "" for other runs."""
    name, finetuned, _ = facts.data.partition(", one example per row")
    return name.removeprefix("fire_lm:") if finetuned else ""
