"""Lookup of the runs and checkpoints in the arguments of a command such as `fire-lm sweep`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence

from etils import epath

from fire_lm.checkpoints import available_steps, names_a_folder, parted
from fire_lm.errors import UserError
from fire_lm.runs.saved import newest_config, starting
from fire_lm.storage import children, place, require_bucket, resolved, with_name

SAME_NAME = "two runs have the same name, so a table cannot distinguish them: rename one folder"
SEVERAL = "several runs need --output=DIR, the folder for their table and figure"


@dataclasses.dataclass(frozen=True)
class RunSteps:
    """A run and its checkpoints to score.

    Attributes:
      workdir: The run directory.
      steps: The steps of the checkpoints to score; if empty, only the newest checkpoint is scored.
      all: Whether to score all existing checkpoints instead.
    """

    workdir: epath.Path
    steps: tuple[int, ...] = ()
    all: bool = False


class NotYet(UserError):
    """The error for a run that may not have started yet; `folder` is its expected location."""

    def __init__(self, message: str, folder: epath.Path):
        super().__init__(message)
        self.folder = folder


def find_runs(named: Sequence[str], begun: bool = True) -> tuple[list[RunSteps], list[epath.Path]]:
    """Return the runs that the names select, and the folder that each name denotes.

    A name has the form `RUN` (for the newest checkpoint), `RUN@STEP`, `RUN@STEP,STEP` or `RUN@all`,
    or is a folder of runs. If `begun` is True, runs without a checkpoint are skipped if other runs
    in the same folder have one. If it is False, they are included, and all checkpoints of a run are
    selected by default.

    Raises:
      NotYet: A folder does not exist or contains no run.
      UserError: A name is malformed, or two runs have the same name.
    """
    runs: list[RunSteps] = []
    folders = []
    for name in named:
        literal = names_a_folder(name)
        folder, steps, every = (name, (), False) if literal else split_steps(name)
        path = with_name(place(folder))
        entries = children(path)
        if not entries:
            require_bucket(path, "the run")
            empty = f"{folder} is an empty folder"  # never in a bucket
            there = os.path.isdir(path)
            raise NotYet(empty if there else f"there is no run directory {folder}", path)
        folders.append(path)
        inside = [path] if newest_config(path, entries) else sorted(filter(newest_config, entries))
        if not inside:
            subfolders = (child for child in entries if child.is_dir())
            start = next(filter(None, map(starting, [path, *subfolders])), "")
            neither = f"{folder} is neither a run (no config.gin) nor a folder of runs"
            raise NotYet(start or neither, path)
        ready = [run for run in inside if available_steps(run)] or inside
        for run in set(inside) - set(ready) if begun else ():
            print(f"{run} has no checkpoint yet: skipped")
        every = every or not (begun or steps)
        runs += [RunSteps(run, steps, every) for run in (ready if begun else inside)]
    paths = {run.workdir for run in runs}
    if len({path.name for path in paths}) < len(paths):
        raise UserError(SAME_NAME)
    return runs, folders


def folder_of_all(
    output: str | None, workdirs: Sequence[epath.Path], named: Iterable[epath.Path]
) -> epath.Path:
    """Return the folder for the combined results of several runs.

    Args:
      output: The folder that the user specified, if any.
      workdirs: The directories of the runs.
      named: The folders that the user specified as runs or as folders of runs.

    Raises:
      UserError: `output` is missing although there are several folders, or it is a run whose
        results would be replaced.
    """
    if not output:
        first, *others = dict.fromkeys(named)
        if others:
            raise UserError(SEVERAL)
        return first
    top, swept = place(output), {resolved(path) for path in workdirs}
    if swept == {resolved(top)}:
        return workdirs[0]  # the run's own folder, spelled as the user spelled the run
    if resolved(top) in swept or newest_config(top):
        raise UserError(
            f"--output={output} is itself a run: a table of other runs would replace its results\n"
            f"choose a folder that is not a run, such as --output={top}-table"
        )
    return top


def split_steps(name: str) -> tuple[str, tuple[int, ...], bool]:
    """Split `RUN@1000,2000` into the run and its steps, and return whether `@all` was requested.

    Raises:
      UserError: The text after the @ has another form.
    """
    run, at, steps = parted(name)
    if not at:
        return name, (), False
    if steps == "all":
        return run, (), True
    if not re.fullmatch("[0-9]{1,18}(,[0-9]{1,18})*", steps):
        raise UserError(
            f"'{name}': a step, steps separated by commas, or `all` must follow the @, as in "
            f"{run}@1000,2000"
        )
    return run, tuple(sorted({int(step) for step in steps.split(",")})), False
