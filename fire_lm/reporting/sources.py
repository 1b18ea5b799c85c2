"""The names of runs and arms in a report on several folders."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from etils import epath

from fire_lm.errors import UserError
from fire_lm.results.folder import Results, renamed
from fire_lm.results.tables import BudgetSeries
from fire_lm.runs.find import SAME_NAME
from fire_lm.runs.saved import saved_experiment


def labels(folders: Sequence[epath.Path]) -> dict[epath.Path, str]:
    """Return a label for each folder: its name, with as many parents as tell it from the others.

    A report is written to `RUN/report` by default, so folders of different results share a name.
    """

    def end(folder: epath.Path, depth: int) -> str:
        return "/".join(folder.parts[-depth:])

    def label(folder: epath.Path) -> str:
        others = [other for other in folders if other != folder]
        for depth in range(1, len(folder.parts)):
            if all(end(other, depth) != end(folder, depth) for other in others):
                return end(folder, depth)
        return str(folder)

    return {folder: label(folder) for folder in folders}


def with_own_names(
    parts: Sequence[tuple[str, Results]], runs: Sequence[epath.Path]
) -> tuple[list[tuple[str, Results]], dict[str, epath.Path]]:
    """Return the results of folders, and the run directories by name, with a name for each run.

    Grids with different numbers of steps have runs of the same names. The names of all runs in such
    folders then begin with the folder.

    Raises:
      UserError: Two runs have the same name and the same number of steps, as a run and its copy do.
    """
    named = [(folder, facts.run) for folder, part in parts for facts in part.runs]
    named += [(run.parent.name, run.name) for run in runs]
    counts = collections.Counter(name for _, name in named)
    twice = {name for name, count in counts.items() if count > 1}
    folders = {folder for folder, name in named if name in twice}
    steps = [(f.run, f.train_steps) for _, part in parts for f in part.runs if f.run in twice]
    steps += [(r.name, saved_experiment(r).train.train_steps) for r in runs if r.name in twice]
    if len(set(steps)) < len(steps) or len(set(named)) < len(named):
        raise UserError(SAME_NAME)
    renamed_parts = [
        (folder, renamed(part, {facts.run: f"{folder}/{facts.run}" for facts in part.runs}))
        if folder in folders
        else (folder, part)
        for folder, part in parts
    ]
    places = {
        f"{run.parent.name}/{run.name}" if run.parent.name in folders else run.name: run
        for run in runs
    }
    return renamed_parts, places


# The rows with names that must not be those of another source, and the field of the name.
_NAMED = {"runs": "arm", "models": "name", "tasks": "name"}


def named_apart(parts: Sequence[tuple[str, Results]]) -> list[Results]:
    """Rename arms, models and synthetic runs that have the same name in several sources.

    The settings of different sources are not compared, so arms of the same name may differ. Runs
    whose arms are renamed, or have several budgets, belong to the series of the arm's old name.
    """

    def key(field: str, row: Any) -> tuple[str, ...]:
        return field, getattr(row, _NAMED[field]), getattr(row, "suite", "")

    sources = collections.Counter(
        name
        for _, part in parts
        for name in {key(field, row) for field in _NAMED for row in getattr(part, field)}
    )

    def named(field: str, row: Any, source: str) -> Any:
        if sources[key(field, row)] == 1:
            return row
        return dataclasses.replace(row, **{_NAMED[field]: f"{key(field, row)[1]} of {source}"})

    renamed_parts = []
    for source, part in parts:
        known = {series.run: series.name for series in part.series}
        series = [
            BudgetSeries(run.run, known.get(run.run, run.arm))
            for run in part.runs
            if run.run in known or sources[key("runs", run)] > 1
        ]
        rows = {
            field: [named(field, row, source) for row in getattr(part, field)] for field in _NAMED
        }
        renamed_parts.append(dataclasses.replace(part, **rows, series=series))
    return renamed_parts
