"""The command `fire-lm sweep`, which decides which checkpoints are scored, when, and by whom."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from typing import TypeVar

import jax
from etils import epath

from fire_lm.checkpoints import available_steps, checkpoint_damage, choose_step
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.evaluation import (
    Known,
    Scored,
    say,
    say_once,
    score_checkpoint,
)
from fire_lm.experiment import label_in
from fire_lm.processes import agreed, by_first
from fire_lm.results import (
    PositionLoss,
    ScoredText,
    SweepRow,
    merge_rows,
    merge_table,
    read_own,
)
from fire_lm.results.scored_text import FILE as TEXTS_FILE
from fire_lm.results.scored_text import UNKNOWN
from fire_lm.runs.find import SEVERAL, find_runs, folder_of_all
from fire_lm.storage import place, require_folder
from fire_lm.sweeps.claims import claimed, held
from fire_lm.sweeps.settings import Setting, check_effects, settings
from fire_lm.sweeps.survey import Survey
from fire_lm.sweeps.tables import write_tables

# The number of seconds between looks at a run in training, or at another sweep's checkpoint.
_EVERY = 10.0
_ROWS, _POSITIONS = "length_sweep.csv", "position_losses.csv"
_T = TypeVar("_T")


def sweep(arguments: argparse.Namespace) -> None:
    """Write rows beside each run, and a table and figure of all runs in the top folder."""
    if arguments.output:  # checked first, because --follow may wait for runs
        require_folder(place(arguments.output), "--output")
    if arguments.follow:
        follow(arguments)
        return
    checkpoints, top = by_first(lambda: chosen(arguments))
    check_effects(arguments, dict.fromkeys(place(name) for name, _ in checkpoints))
    if arguments.dry_run:
        for name, step in checkpoints:
            describe(arguments, place(name), step)
        return
    failures: dict[tuple[str, int], FireLMError] = {}
    for name, step in checkpoints:
        try:
            while not score(arguments, place(name), step):
                say(f"{name}@{step} is being scored by another sweep: waiting for it")
                time.sleep(_EVERY)
        except FireLMError as error:  # such as a checkpoint removed in the meantime
            failures[name, step] = error
            if len(failures) == len(checkpoints):
                raise
            say(f"{name}@{step} is skipped: {error}")
    combine([one for one in checkpoints if tuple(one) not in failures], place(top))
    if failures:
        found = "\n".join(f"{name}@{step}: {error}" for (name, step), error in failures.items())
        raise RunFailed(
            f"{len(failures)} of {len(checkpoints)} checkpoints could not be scored\n{found}"
        )


def describe(arguments: argparse.Namespace, workdir: epath.Path, step: int) -> None:
    """Print what `--dry_run` shows."""
    for one in settings(arguments, workdir):
        asked = f" also {one.also}" * bool(one.also)
        lengths = one.config.macro("EVAL_LENGTHS")
        one.asked.lengths_taken(str(workdir))
        print(f"{workdir}@{step} at {lengths}{asked}\n{one.config.text()}")


def chosen(arguments: argparse.Namespace) -> tuple[list[tuple[str, int]], str]:
    """Return each checkpoint to score once, and the folder of the combined results.

    Raises:
      UserError, RunFailed: A named checkpoint, or the newest one, is missing or damaged.
    """
    runs, named = find_runs(arguments.runs)
    top = folder_of_all(arguments.output, [run.workdir for run in runs], named)
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
    """Score each checkpoint of runs that are being trained, oldest first, until training ends.

    Scored rows stay, so the same command resumes after a kill.

    Raises:
      RunFailed: Training has ended, and some checkpoints could not be scored, or there were none.
    """
    if arguments.dry_run:
        raise UserError("--follow and --dry_run exclude each other")
    if len(arguments.runs) > 1 and not arguments.output:
        raise UserError(SEVERAL)
    survey, checked = Survey(arguments), False
    while True:
        due, top, over = by_first(survey.look)
        if not checked and (checked := agreed(survey.begun)):
            check_effects(arguments, map(place, agreed(survey.runs())))
        scored = 0
        for name, step in due:
            try:
                if score(arguments, place(name), step):
                    survey.leave(name, step)
                    scored += 1
            except RunFailed as error:
                survey.failed(name, step, str(error))
        if scored:
            combine(survey.scored(), place(top))
        if over and not due:
            by_first(survey.judge)
            return
        if not scored:
            time.sleep(_EVERY)


def score(arguments: argparse.Namespace, workdir: epath.Path, step: int) -> bool:
    """Write the missing rows of a checkpoint; return False if another process is scoring it."""
    whole = True
    for one in settings(arguments, workdir):
        with claimed(workdir, one.claim(step), jax.process_index() == 0) as claim:
            ours: bool = agreed(claim)
            if ours:
                score_claimed(one, workdir, step)
        whole &= ours
    return whole


def score_claimed(setting: Setting, workdir: epath.Path, step: int) -> None:
    """Score a claimed checkpoint, writing each row as soon as it is known."""
    score_checkpoint(
        setting.asked,
        str(workdir),
        step,
        run=workdir.name,
        variant=setting.variant,
        finished=finished_in(workdir, label_in(setting.config)),
        on_scored=lambda scored: by_first(lambda: write_scored(workdir, scored)),
    )


def finished_in(workdir: epath.Path, encoding: str) -> Known:
    """Return the finished rows of a run, as process 0 sees them."""
    own = read_own(workdir, encoding)
    if own.problem:
        say_once(own.problem)
    of_positions = own.texts.of_all_positions(own.positions)
    rows = agreed([dataclasses.astuple(row) for row in own.losses])
    found = [SweepRow(*row) for row in rows]
    of_rows = agreed(list(own.texts.of_rows(found).items()))
    return Known(
        rows={row.key: row for row in found},
        texts={tuple(key): text for key, text in of_rows},
        positions={tuple(key): text for key, text in agreed(list(of_positions.items()))},
    )


def write_scored(workdir: epath.Path, scored: Scored) -> None:
    """Write a row after its text and its losses by position.

    A text belongs to the row with the same loss, so a text that a kill left without a row belongs
    to none. The text of an existing row stays.

    Raises:
      RunFailed: Another sweep has started with another text in the meantime.
    """
    with held(workdir, "rows"):  # from reading the existing files until all are written
        if (line := scored.text) is not None:
            own = read_own(workdir, line.encoding)
            for row in own.losses:
                same_name = row.key[4:8] == line.key[4:8]
                if same_name and own.texts.of(row) not in (UNKNOWN, line.text):
                    raise RunFailed(
                        f"another sweep of {workdir} is scoring another text of the same name\n"
                        "run both with the same length_sweep.tokens and data"
                    )
            if not any(row.key == line.key and own.texts.of(row) for row in own.losses):
                merge_table(workdir / TEXTS_FILE, ScoredText, [line], replace=True)
        merge_table(workdir / _POSITIONS, PositionLoss, scored.positions)
        merge_rows(workdir / _ROWS, [scored.row])


def combine(checkpoints: Sequence[tuple[str, int]], top: epath.Path) -> None:
    """Write a table and figure of these checkpoints, and for several runs their common CSV file."""
    if jax.process_index() == 0:
        table = write_tables(checkpoints, top)
        print(f"\n{table}\n\n{top / _ROWS}, .png")
