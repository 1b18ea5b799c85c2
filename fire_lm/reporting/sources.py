"""The names of runs and arms in a report on several folders."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from etils import epath

from fire_lm.errors import UserError
from fire_lm.results.folder import Results, renamed
from fire_lm.results.tables import Series
from fire_lm.runs.find import SAME_NAME
from fire_lm.runs.saved import saved_experiment


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


def named_apart(parts: Sequence[tuple[str, Results]]) -> list[Results]:
    """Rename arms, models and synthetic runs that have the same name in several sources.

    The settings of different sources are not compared, so arms of the same name may differ.
    """
    sources = collections.Counter(arm for _, part in parts for arm in part.arms())
    with_model = collections.Counter(
        model for _, part in parts for model in {(m.suite, m.name) for m in part.models}
    )
    with_task = collections.Counter(
        task for _, part in parts for task in {task.name for task in part.tasks}
    )
    found = []
    for name, part in parts:
        runs = [
            dataclasses.replace(run, arm=f"{run.arm} of {name}") if sources[run.arm] > 1 else run
            for run in part.runs
        ]
        models = [
            dataclasses.replace(model, name=f"{model.name} of {name}")
            if with_model[model.suite, model.name] > 1
            else model
            for model in part.models
        ]
        tasks = [
            dataclasses.replace(task, name=f"{task.name} of {name}")
            if with_task[task.name] > 1
            else task
            for task in part.tasks
        ]
        found.append(
            dataclasses.replace(
                part, runs=runs, models=models, tasks=tasks, series=_series_of(part, sources)
            )
        )
    return found


def _series_of(part: Results, sources: Mapping[str, int]) -> list[Series]:
    """Return the series of runs whose arms have other names in a source, or have several budgets.

    `sources` contains the number of sources of each arm. Arms of one name belong to one series.
    """
    known = {one.run: one.name for one in part.series}
    return [
        Series(run.run, known.get(run.run, run.arm))
        for run in part.runs
        if run.run in known or sources[run.arm] > 1
    ]
