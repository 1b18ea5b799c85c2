"""`fire-lm sweep`: which checkpoints are scored, when, and by whom; evaluation has the numbers."""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
from collections.abc import Sequence

import jax
from etils import epath

from fire_lm import config as gin
from fire_lm import models
from fire_lm.checkpoints import available_steps, checkpoint_damage, choose_step
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation import claimed
from fire_lm.reporting import SweepRow, merge_rows, read_rows, write_rows
from fire_lm.reporting import length_sweep as report
from fire_lm.sharding import agreed, initialize_distributed
from fire_lm.training import stopped_at
from fire_lm.verbs import load_config, newest_config, place, quiet_libraries

# Seconds between looks at a run that is being trained, or at a checkpoint that another scores.
_EVERY = 10.0


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


def sweep(arguments: argparse.Namespace) -> None:
    """Rows beside each run, table and figure of all of them at the top."""
    quiet_libraries()
    if arguments.follow:
        if arguments.dry_run:
            raise UserError("--follow and --dry_run exclude each other")
        initialize_distributed()
        follow(arguments)
        return
    runs, top = find_runs(arguments.runs, arguments.output)
    initialize_distributed()
    checkpoints = chosen(runs)
    for workdir, step in checkpoints:
        if arguments.dry_run:
            config, _ = configuration(arguments, workdir)
            print(f"{workdir}@{step} at {config.macro('EVAL_LENGTHS')}\n{config.text()}")
            continue
        while not score(arguments, workdir, step):
            say(f"{workdir}@{step} is being scored by another sweep: waiting for it")
            time.sleep(_EVERY)
    if not arguments.dry_run:
        combine(arguments, checkpoints, top)


def chosen(runs: Sequence[Wanted]) -> list[tuple[epath.Path, int]]:
    """Each checkpoint once, verified. Raises UserError or RunFailed for one that is not whole."""
    found = []
    for run in runs:
        steps = tuple(available_steps(run.workdir)) if run.all else run.steps
        found += [(run.workdir, choose_step(run.workdir, step)) for step in steps or (None,)]
    return list(dict.fromkeys(found))


def follow(arguments: argparse.Namespace) -> None:
    """Scores each checkpoint of runs that are being trained, oldest first, until they have ended.

    What is scored already stays, so that a follower that was killed goes on by the same command.
    """
    survey = Survey(arguments)
    checkpoints: list[tuple[epath.Path, int]] = []
    while True:
        due, top, over = agreed(survey.look() if jax.process_index() == 0 else ([], "", False))
        found = []
        for name, step in due:
            workdir = place(name)
            try:
                ours = score(arguments, workdir, step)
            except RunFailed as error:
                if agreed(step in available_steps(workdir)):
                    raise
                say(f"{workdir}@{step} was removed while it was being scored: {error}")
                survey.leave(workdir, step)
                continue
            if ours:
                survey.leave(workdir, step)
                found.append((workdir, step))
        checkpoints += found
        if found:
            combine(arguments, checkpoints, place(top))
        if over and not due:
            if not checkpoints:
                raise RunFailed("training has ended, and there is no whole checkpoint to score")
            return
        if not found:
            time.sleep(_EVERY)


class Survey:
    """What there is to score in runs that are being trained."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._seen: set[tuple[str, int]] = set()
        self._left: set[tuple[str, int]] = set()
        self._told: set[str] = set()

    def leave(self, workdir: epath.Path, step: int) -> None:
        """It has been scored, or cannot be."""
        self._left.add((str(workdir), step))

    def look(self) -> tuple[list[tuple[str, int]], str, bool]:
        """(checkpoints to score, folder of the combined results, whether training has ended)."""
        try:
            runs, top = find_runs(self._arguments.runs, self._arguments.output, begun=False)
        except NotYet as error:
            self._tell(f"{error}: waiting for it")
            return [], "", False
        due, over = [], True
        for run in runs:
            over &= self._has_ended(run)  # before it is asked what there is: the last one counts
            for step in self._steps(run):
                if (str(run.workdir), step) in self._left:
                    continue
                if problem := checkpoint_damage(run.workdir, step):
                    self._tell(f"checkpoint {step} of {run.workdir} is damaged: {problem}: skipped")
                    self.leave(run.workdir, step)
                    continue
                due.append((str(run.workdir), step))
        return due, str(top), over

    def _steps(self, run: Wanted) -> list[int]:
        """The checkpoints that there are, of those wanted; tells of those that have gone."""
        there = available_steps(run.workdir)
        name = str(run.workdir)
        for gone in sorted(self._seen - {(name, step) for step in there} - self._left):
            if gone[0] == name:
                self._tell(f"checkpoint {gone[1]} of {name} was removed before it was scored")
                self._left.add(gone)
        wanted = [step for step in there if not run.steps or step in run.steps]
        self._seen |= {(name, step) for step in wanted}
        return wanted

    def _has_ended(self, run: Wanted) -> bool:
        there = available_steps(run.workdir)
        saved = newest_config(run.workdir)
        assert saved is not None  # find_runs has seen it
        last = load_config([str(saved)]).macro("TRAIN_STEPS")
        assert isinstance(last, int)
        if run.steps and set(run.steps) <= set(there):
            return True
        if there and there[-1] >= last:
            return True
        stopped = stopped_at(run.workdir)
        if stopped is not None:
            self._tell(f"{run.workdir} stopped at step {stopped}: its loss was not finite")
        return stopped is not None

    def _tell(self, words: str) -> None:
        if words not in self._told:
            say(words)
            self._told.add(words)


def score(arguments: argparse.Namespace, workdir: epath.Path, step: int) -> bool:
    """Writes what is missing of a checkpoint's rows; False if another process is at it."""
    config, variant = configuration(arguments, workdir)
    with claimed(workdir, f"{step}-{variant or 'plain'}", jax.process_index() == 0) as claim:
        ours: bool = agreed(claim)
        if ours:
            score_claimed(config, workdir, step, variant)
    return ours


def score_claimed(config: gin.Config, workdir: epath.Path, step: int, variant: str) -> None:
    """Each row is written as soon as it is known."""
    path = workdir / "length_sweep.csv"
    finished = agreed([dataclasses.astuple(row) for row in read_rows(path)])

    def add(row: SweepRow) -> None:
        if jax.process_index() == 0:
            merge_rows(path, [row])

    config.call(
        "length_sweep",
        workdir=str(workdir),
        run=workdir.name,
        step=step,
        variant=variant,
        finished=[SweepRow(*row) for row in finished],
        on_row=add,
    )


def combine(
    arguments: argparse.Namespace, checkpoints: Sequence[tuple[epath.Path, int]], top: epath.Path
) -> None:
    """Table and figure of these checkpoints' rows, and at the top of several runs their CSV."""
    if jax.process_index() != 0:
        return
    rows: list[SweepRow] = []
    train_lengths: dict[str, int] = {}
    for workdir, step in checkpoints:
        found = read_rows(workdir / "length_sweep.csv")
        rows += [row for row in found if (row.run, row.step) == (workdir.name, step)]
        length = configuration(arguments, workdir)[0].macro("TRAIN_LENGTH")
        assert isinstance(length, int)  # pretrain's annotation has been checked
        train_lengths[workdir.name] = length
    top.mkdir(parents=True, exist_ok=True)
    if {workdir for workdir, _ in checkpoints} != {top}:
        write_rows(top / "length_sweep.csv", rows)
    report.figure(rows, train_lengths, top / "length_sweep.png")
    print(f"\n{report.table(rows, train_lengths)}\n\n{top / 'length_sweep.csv'}, .png")


def configuration(arguments: argparse.Namespace, workdir: epath.Path) -> tuple[gin.Config, str]:
    """The run's own configuration with what was asked for, and the name of what that changes."""
    saved = str(newest_config(workdir))
    config = load_config(
        [saved, *arguments.gin_file], arguments.bindings, arguments.gin_search_paths
    )
    return config, variant_of(load_config([saved]), config, workdir)


def variant_of(trained: gin.Config, asked: gin.Config, workdir: epath.Path) -> str:
    """What is asked of the trained model at evaluation alone, by its name in the table."""
    if trained.macro("ENCODING") != asked.macro("ENCODING"):
        raise UserError(
            f"{workdir} was trained as {trained.macro('ENCODING')}, which is its name in the table"
            ": set what changes at evaluation by bindings (--gin.RoPE.scaling=@YaRN()), not by a "
            "file of configs/positions"
        )
    try:
        return models.variant(trained.call("build_decoder"), asked.call("build_decoder"))
    except UserError as error:
        raise UserError(f"{workdir}: {error}") from error


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
    runs: list[Wanted] = []
    folders = []
    for name in named:
        folder, steps, every = (name, (), False) if place(name).is_dir() else split_steps(name)
        path = place(folder)
        path = path if path.name else path.absolute()  # `.` has no name
        if not path.is_dir():
            raise NotYet(f"there is no run directory {folder}")
        folders.append(path)
        inside = [path] if newest_config(path) else sorted(filter(newest_config, path.iterdir()))
        if not inside:
            raise NotYet(f"{folder} is neither a run (no config.gin) nor a folder of runs")
        ready = [run for run in inside if available_steps(run)] or inside
        for run in set(inside) - set(ready) if begun else ():
            print(f"{run} has no checkpoint yet: left out")
        every = every or not (begun or steps)
        runs += [Wanted(run, steps, every) for run in (ready if begun else inside)]
    paths = {run.workdir for run in runs}
    if len({path.name for path in paths}) < len(paths):
        raise UserError("two of the runs have the same name, the table could not tell them apart")
    if output:
        return runs, epath.Path(output)
    if len(set(folders)) == 1:
        return runs, folders[0]
    raise UserError("several runs: say --output=DIR, the folder for their table and figure")


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


def say(words: str) -> None:
    if jax.process_index() == 0:
        print(words, flush=True)
