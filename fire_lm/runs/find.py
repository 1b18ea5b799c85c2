"""The runs and checkpoints that `fire-lm sweep` is asked for, by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from etils import epath

from fire_lm.checkpoints import available_steps
from fire_lm.errors import UserError
from fire_lm.runs.saved import newest_config
from fire_lm.storage import children, place, present, require_bucket, resolved, with_name

SAME_NAME = "two runs have the same name, so the table could not tell them apart"
SEVERAL = "several runs need --output=DIR, the folder for their table and figure"


@dataclasses.dataclass(frozen=True)
class ChosenSteps:
    """The checkpoints of a run that are to be scored.

    Attributes:
      workdir: of the run.
      steps: of its checkpoints; the newest alone if empty.
      all: whether it is all that there are.
    """

    workdir: epath.Path
    steps: tuple[int, ...] = ()
    all: bool = False


class NotYet(UserError):
    """A run that is not there (yet), and where it would be."""

    def __init__(self, message: str, folder: epath.Path):
        super().__init__(message)
        self.folder = folder


def find_runs(
    named: Sequence[str], begun: bool = True
) -> tuple[list[ChosenSteps], list[epath.Path]]:
    """The runs, each with the checkpoints asked for, and the folders that were named.

    A name is a run directory (its newest checkpoint), `RUN@STEP`, `RUN@STEP,STEP`, `RUN@all`, or
    a folder of runs. Of runs that need not have begun all checkpoints are wanted, if none is named.

    Raises:
      NotYet: one of them is not there. UserError: they cannot stand in one table.
    """
    runs: list[ChosenSteps] = []
    folders = []
    for name in named:
        # Only a name with an @ can mean two things.
        literal = "@" not in name or present(place(name))
        folder, steps, every = (name, (), False) if literal else split_steps(name)
        path = with_name(place(folder))
        found = children(path)
        if not found:
            require_bucket(path, "the run")
            raise NotYet(f"there is no run directory {folder}", path)
        folders.append(path)
        inside = [path] if newest_config(path, found) else sorted(filter(newest_config, found))
        if not inside:
            raise NotYet(f"{folder} is neither a run (no config.gin) nor a folder of runs", path)
        ready = [run for run in inside if available_steps(run)] or inside
        for run in set(inside) - set(ready) if begun else ():
            print(f"{run} has no checkpoint yet: left out")
        every = every or not (begun or steps)
        runs += [ChosenSteps(run, steps, every) for run in (ready if begun else inside)]
    paths = {run.workdir for run in runs}
    if len({path.name for path in paths}) < len(paths):
        raise UserError(SAME_NAME)
    return runs, folders


def folder_of_all(
    output: str | None, workdirs: Sequence[epath.Path], named: Iterable[epath.Path]
) -> epath.Path:
    """The folder for the combined results of these runs; `named` are the folders asked for.

    Raises:
      UserError: it is not said, or is a run, whose own results would be replaced.
    """
    if not output:
        first, *others = dict.fromkeys(named)
        if others:
            raise UserError(SEVERAL)
        return first
    top, swept = place(output), {resolved(path) for path in workdirs}
    if swept == {resolved(top)}:
        return workdirs[0]  # its own folder, as the run is spelled
    if resolved(top) in swept or newest_config(top):
        raise UserError(
            f"--output={output} is itself a run: a table of other runs would replace its results\n"
            f"give a folder that is not a run, such as --output={top}-table"
        )
    return top


def split_steps(name: str) -> tuple[str, tuple[int, ...], bool]:
    """`RUN@1000,2000` -> (run, steps, whether all of them are wanted)."""
    run, at, steps = name.rpartition("@")
    if not at:
        return name, (), False
    if steps == "all":
        return run, (), True
    if not re.fullmatch("[0-9]{1,18}(,[0-9]{1,18})*", steps):
        raise UserError(
            f"'{name}': after @ comes a step, several with commas, or all, as in {run}@1000,2000"
        )
    return run, tuple(sorted({int(step) for step in steps.split(",")})), False
