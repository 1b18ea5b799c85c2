"""`fire-lm sweep`: which checkpoints are scored, when, and by whom; evaluation has the numbers."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from etils import epath

from fire_lm import config as gin
from fire_lm import models
from fire_lm.checkpoints import available_steps, checkpoint_damage, choose_step
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.evaluation import claimed
from fire_lm.reporting import (
    PositionLoss,
    SweepRow,
    merge_rows,
    merge_table,
    read_rows,
    read_table,
    write_rows,
    write_table,
)
from fire_lm.reporting import length_sweep as report
from fire_lm.sharding import agreed, initialize_distributed
from fire_lm.sweep_runs import SAME_NAME, NotYet, Wanted, find_runs
from fire_lm.training import stopped_at
from fire_lm.verbs import load_config, newest_config, place, quiet_libraries

# Seconds between looks at a run that is being trained, or at a checkpoint that another scores.
_EVERY = 10.0
# How often a checkpoint that is whole, and cannot be scored, is tried.
_TRIES = 3
_T = TypeVar("_T")


def sweep(arguments: argparse.Namespace) -> None:
    """Rows beside each run, table and figure of all of them at the top."""
    quiet_libraries()
    initialize_distributed()
    if arguments.follow:
        follow(arguments)
        return
    checkpoints, top = by_first(lambda: chosen(arguments))
    for name, step in checkpoints:
        workdir = place(name)
        if arguments.dry_run:
            config, _ = configuration(arguments, workdir)
            print(f"{workdir}@{step} at {config.macro('EVAL_LENGTHS')}\n{config.text()}")
            continue
        while not score(arguments, workdir, step):
            say(f"{workdir}@{step} is being scored by another sweep: waiting for it")
            time.sleep(_EVERY)
    if not arguments.dry_run:
        combine(arguments, checkpoints, place(top))


def by_first(work: Callable[[], _T]) -> _T:
    """What `work` returns on process 0 (JSON), or raises there, on all of a job's processes."""
    told: dict[str, Any] = {}
    if jax.process_index() == 0:
        try:
            told = {"value": work()}
        except FireLMError as error:
            told = {"error": str(error), "code": error.exit_code}
    told = agreed(told)
    if "error" in told:
        raise (UserError if told["code"] == 2 else RunFailed)(told["error"])
    value: _T = told["value"]
    return value


def chosen(arguments: argparse.Namespace) -> tuple[list[tuple[str, int]], str]:
    """Each checkpoint to score once, and the folder of the combined results.

    Raises:
      UserError, RunFailed: one that was named, or the newest, is not there or not whole.
    """
    runs, top = find_runs(arguments.runs, arguments.output)
    found: list[tuple[str, int]] = []
    for run in runs:
        name = str(run.workdir)
        if run.all:
            for step in available_steps(run.workdir):
                if problem := checkpoint_damage(run.workdir, step):
                    print(f"checkpoint {step} of {name} is damaged: {problem}: skipped", flush=True)
                else:
                    found.append((name, step))
        else:
            found += [(name, choose_step(run.workdir, step)) for step in run.steps or (None,)]
    return list(dict.fromkeys(found)), str(top)


def follow(arguments: argparse.Namespace) -> None:
    """Scores each checkpoint of runs that are being trained, oldest first, until they have ended.

    What is scored already stays, so that a follower that was killed goes on by the same command.

    Raises:
      RunFailed: training has ended, and some checkpoints could not be scored, or there were none.
    """
    if arguments.dry_run:
        raise UserError("--follow and --dry_run exclude each other")
    if len(arguments.runs) > 1 and not arguments.output:
        raise UserError("several runs: say --output=DIR, the folder for their table and figure")
    survey = Survey(arguments)
    while True:
        due, top, over = by_first(survey.look)
        scored = 0
        for name, step in due:
            try:
                if score(arguments, place(name), step):
                    survey.leave(name, step)
                    scored += 1
            except RunFailed as error:
                survey.failed(name, step, str(error))
        if scored:
            combine(arguments, survey.scored(), place(top))
        if over and not due:
            by_first(survey.judge)
            return
        if not scored:
            time.sleep(_EVERY)


class Survey:
    """What there is to score in runs that are being trained. Process 0's is the one that counts."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._runs: dict[str, Wanted] = {}
        self._seen: set[tuple[str, int]] = set()
        self._left: set[tuple[str, int]] = set()
        self._failures: dict[tuple[str, int], list[str]] = {}
        self._told: set[str] = set()

    def leave(self, name: str, step: int) -> None:
        """It has been scored, or cannot be."""
        self._left.add((name, step))

    def failed(self, name: str, step: int, problem: str) -> None:
        """Of one that is there and whole, three times; any other is named and left at once."""
        if jax.process_index() != 0:
            return
        if step not in available_steps(name):
            self._tell(f"checkpoint {step} of {name} was removed before it was scored")
            self.leave(name, step)
        elif found := checkpoint_damage(name, step):
            self._tell(f"checkpoint {step} of {name} is damaged: {found}: skipped")
            self.leave(name, step)
        else:
            say(problem)
            problems = self._failures.setdefault((name, step), [])
            problems.append(problem)
            if len(problems) == _TRIES:
                self.leave(name, step)

    def look(self) -> tuple[list[tuple[str, int]], str, bool]:
        """(checkpoints to score, folder of the combined results, whether training has ended)."""
        due, over, top = [], True, ""
        for name in self._arguments.runs:
            try:
                runs, folder = find_runs([name], self._arguments.output, begun=False)
            except NotYet as error:
                self._tell(f"{error}: waiting for it")
                over = False
                continue
            top = str(folder)
            for run in runs:
                self._runs[str(run.workdir)] = run
                over &= self._has_ended(run)  # before what there is: the last one counts
                due += [(str(run.workdir), step) for step in self._steps(run)]
        names = [run.workdir.name for run in self._runs.values()]
        if len(set(names)) < len(names):
            raise UserError(SAME_NAME)
        return due, top, over

    def _steps(self, run: Wanted) -> list[int]:
        """The checkpoints that are left to score; tells of those that have gone."""
        name, there = str(run.workdir), available_steps(run.workdir)
        wanted = {(name, step) for step in there if not run.steps or step in run.steps}
        gone = {one for one in self._seen - wanted - self._left if one[0] == name}
        if gone:
            rows = {row.step for row in read_rows(run.workdir / "length_sweep.csv")}
            for _, step in sorted(gone):
                if step not in rows:  # else another sweep has scored it
                    self._tell(f"checkpoint {step} of {name} was removed before it was scored")
        self._left |= gone
        self._seen |= wanted
        return sorted(step for _, step in wanted - self._left)

    def _has_ended(self, run: Wanted) -> bool:
        name, there = str(run.workdir), available_steps(run.workdir)
        saved = newest_config(run.workdir)
        assert saved is not None  # find_runs has seen it
        last = load_config([str(saved)]).macro("TRAIN_STEPS")
        assert isinstance(last, int)
        left = {step for workdir, step in self._left if workdir == name}
        if run.steps and set(run.steps) <= left | set(there):
            return True
        if there and there[-1] >= last:
            return True
        stopped = stopped_at(run.workdir)
        if stopped is not None:
            self._tell(f"training of {name} stopped by itself at step {stopped} (spikes.jsonl)")
        return stopped is not None

    def scored(self) -> list[tuple[str, int]]:
        """All checkpoints of these runs that have rows, whoever scored them."""
        if jax.process_index() != 0:
            return []
        return [
            (name, step)
            for name, run in self._runs.items()
            for step in sorted(_steps_with_rows(run.workdir))
            if not run.steps or step in run.steps
        ]

    def judge(self) -> None:
        """Raises RunFailed if something is missing in the end."""
        lost = [f"{n}@{s}: {p[-1]}" for (n, s), p in self._failures.items() if len(p) == _TRIES]
        if lost:
            raise RunFailed(f"{len(lost)} checkpoints could not be scored\n" + "\n".join(lost))
        if not self.scored():
            raise RunFailed("training has ended, and there was no whole checkpoint to score")

    def _tell(self, words: str) -> None:
        if words not in self._told:
            say(words)
            self._told.add(words)


def _steps_with_rows(workdir: epath.Path) -> set[int]:
    rows = read_rows(workdir / "length_sweep.csv")
    return {row.step for row in rows if row.run == workdir.name}


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
    path, positions = workdir / "length_sweep.csv", workdir / "position_losses.csv"
    finished = agreed([dataclasses.astuple(row) for row in read_rows(path)])
    keys = agreed(sorted({row.key for row in read_table(positions, PositionLoss)}))

    def add(row: SweepRow) -> None:
        if jax.process_index() == 0:
            merge_rows(path, [row])

    def add_positions(rows: list[PositionLoss]) -> None:
        if jax.process_index() == 0:
            merge_table(positions, PositionLoss, rows)

    config.call(
        "length_sweep",
        workdir=str(workdir),
        run=workdir.name,
        step=step,
        variant=variant,
        finished=[SweepRow(*row) for row in finished],
        on_row=add,
        finished_positions={tuple(key) for key in keys},
        on_positions=add_positions,
    )


def combine(
    arguments: argparse.Namespace, checkpoints: Sequence[tuple[str, int]], top: epath.Path
) -> None:
    """Table and figure of these checkpoints' rows, and at the top of several runs their CSV."""
    if jax.process_index() != 0:
        return
    rows: list[SweepRow] = []
    train_lengths: dict[str, int] = {}
    found = {name: read_rows(place(name) / "length_sweep.csv") for name, _ in checkpoints}
    for name, step in checkpoints:
        workdir = place(name)
        rows += [row for row in found[name] if (row.run, row.step) == (workdir.name, step)]
    positions = [
        row
        for name in found
        for row in read_table(place(name) / "position_losses.csv", PositionLoss)
        if row.run == place(name).name and (name, row.step) in set(checkpoints)
    ]
    for name in found:
        length = configuration(arguments, place(name))[0].macro("TRAIN_LENGTH")
        assert isinstance(length, int)  # pretrain's annotation has been checked
        train_lengths[place(name).name] = length
    top.mkdir(parents=True, exist_ok=True)
    if {place(name) for name in found} != {top}:
        write_rows(top / "length_sweep.csv", rows)
        if positions:
            write_table(top / "position_losses.csv", PositionLoss, positions)
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


def say(words: str) -> None:
    if jax.process_index() == 0:
        print(words, flush=True)
