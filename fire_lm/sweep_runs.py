"""The runs and checkpoints that `fire-lm sweep` is asked for, by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from etils import epath

from fire_lm.checkpoints import available_steps
from fire_lm.errors import UserError
from fire_lm.storage import children, in_bucket, present, require_bucket, require_folder
from fire_lm.verbs import newest_config, place

SAME_NAME = "two of the runs have the same name, the table could not tell them apart"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be scored of a run.

    Attributes:
      workdir: of the run.
      steps: of its checkpoints; the newest alone if empty.
      all: whether it is all that there are.
    """

    workdir: epath.Path
    steps: tuple[int, ...] = ()
    all: bool = False


class NotYet(UserError):
    """A run that is not there, or has no checkpoint."""


def find_runs(
    named: Sequence[str], output: str | None, begun: bool = True
) -> tuple[list[Wanted], epath.Path]:
    """The runs, each with the checkpoints asked for, and the folder of the combined results.

    A name is a run directory (its newest checkpoint), `RUN@STEP`, `RUN@STEP,STEP`, `RUN@all`, or
    a folder of runs. Of runs that need not have begun all checkpoints are wanted, if none is named.

    Raises:
      NotYet: one of them is not there. UserError: they cannot stand in one table.
    """
    if output:  # first: --follow may wait for runs
        require_folder(place(output), "--output")
    runs: list[Wanted] = []
    folders = []
    for name in named:
        # Only a name with an @ can mean two things.
        literal = "@" not in name or present(place(name))
        folder, steps, every = (name, (), False) if literal else split_steps(name)
        path = place(folder)
        path = path if path.name else path.absolute()  # `.` has no name
        found = children(path)
        if not found:
            require_bucket(path, "the run")
            raise NotYet(f"there is no run directory {folder}")
        folders.append(path)
        inside = [path] if newest_config(path, found) else sorted(filter(newest_config, found))
        if not inside:
            raise NotYet(f"{folder} is neither a run (no config.gin) nor a folder of runs")
        ready = [run for run in inside if available_steps(run)] or inside
        for run in set(inside) - set(ready) if begun else ():
            print(f"{run} has no checkpoint yet: left out")
        every = every or not (begun or steps)
        runs += [Wanted(run, steps, every) for run in (ready if begun else inside)]
    paths = {run.workdir for run in runs}
    if len({path.name for path in paths}) < len(paths):
        raise UserError(SAME_NAME)
    if output:
        return runs, folder_of_table(output, paths)
    if len(set(folders)) == 1:
        return runs, folders[0]
    raise UserError("several runs: say --output=DIR, the folder for their table and figure")


def folder_of_table(output: str, runs: Collection[epath.Path]) -> epath.Path:
    """The folder that `output` names; if it is the only run's own, by the name of the run.

    Raises:
      UserError: it is another run's, whose rows the table would replace.
    """
    top = place(output)
    if newest_config(top) is None:
        return top
    for run in runs if len(runs) == 1 else ():
        if plain_name(run) == plain_name(top):
            return run
    raise UserError(
        f"--output={output} is a run directory, whose own rows the table would replace\n"
        "give another folder for the table of these runs"
    )


def plain_name(folder: epath.Path) -> str:
    return str(folder).rstrip("/") if in_bucket(folder) else str(Path(folder).resolve())


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
