"""The command `fire-lm sweep`, which scores the checkpoints of runs at several lengths."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence

import jax
from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.evaluation import Known, Scored, score_checkpoint
from fire_lm.processes import agreed, by_first, failing_together, say_once
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
from fire_lm.runs.find import folder_of_all
from fire_lm.runs.saved import saved_experiment
from fire_lm.storage import place
from fire_lm.sweeps.claims import StillOurs, claimed_by_job, held, kept
from fire_lm.sweeps.length_settings import LengthSetting
from fire_lm.sweeps.schedule import check_output, evaluate_checkpoints
from fire_lm.sweeps.settings import check_effects, settings
from fire_lm.sweeps.tables import write_tables

_ROWS, _POSITIONS = "length_sweep.csv", "position_losses.csv"


def sweep(arguments: argparse.Namespace) -> None:
    """Write each run's rows to its directory, and combined results to the output folder.

    Raises:
      UserError, RunFailed: See `evaluate_checkpoints`.
    """
    check_output(arguments)
    evaluate_checkpoints(LengthSweeps(arguments))


@dataclasses.dataclass(frozen=True)
class LengthSweeps:
    """The scoring of checkpoints at several lengths, an implementation of `schedule.Verb`."""

    arguments: argparse.Namespace

    def folder(self, workdirs: Sequence[epath.Path], named: Iterable[epath.Path]) -> str:
        return str(folder_of_all(self.arguments.output, workdirs, named))

    def check(self, workdirs: Iterable[epath.Path]) -> None:
        check_effects(LengthSetting, self.arguments, workdirs)

    def describe(self, workdir: epath.Path, step: int) -> None:
        for one in settings(LengthSetting, self.arguments, workdir):
            asked = f" also {one.also}" * bool(one.also)
            lengths = one.asked.in_order
            one.asked.lengths_taken(str(workdir))
            print(f"{workdir}@{step} at {lengths}{asked}\n{one.config.text()}")

    def score(self, workdir: epath.Path, step: int) -> bool:
        return score(self.arguments, workdir, step)

    def scored_steps(self, workdir: epath.Path) -> set[int]:
        encoding = saved_experiment(workdir).label
        return {row.step for row in read_own(workdir, encoding).losses}

    def combine(self, checkpoints: Sequence[tuple[str, int]], top: str) -> None:
        """Print a table, and write a figure and, unless `top` is a run directory, all rows."""
        if jax.process_index() == 0:
            folder = place(top)
            table = write_tables(checkpoints, folder)
            print(f"\n{table}\n\n{folder / _ROWS}, .png")


def score(arguments: argparse.Namespace, workdir: epath.Path, step: int) -> bool:
    """Write a checkpoint's missing rows; return False if another job is scoring some of them."""
    whole = True
    with failing_together():
        asked = settings(LengthSetting, arguments, workdir)
    for one in asked:
        with claimed_by_job(workdir, one.claim(step)) as still_ours:
            whole &= still_ours is not None and kept(
                lambda: score_claimed(one, workdir, step, still_ours)  # noqa: B023 (called at once)
            )
    return whole


def score_claimed(
    setting: LengthSetting, workdir: epath.Path, step: int, still_ours: StillOurs
) -> None:
    """Score a claimed checkpoint, and write each row as soon as it has been computed.

    Raises:
      LeaseLost: Another job has taken over the checkpoint.
    """

    def write(scored: Scored) -> None:
        still_ours()
        by_first(lambda: write_scored(workdir, scored))

    score_checkpoint(
        setting.asked,
        str(workdir),
        step,
        run=workdir.name,
        variant=setting.variant,
        finished=finished_in(workdir, setting.config.label),
        on_scored=write,
    )


def finished_in(workdir: epath.Path, encoding: str) -> Known:
    """Return the existing rows of a run, with the texts on which they were measured.

    In a job of several processes, every process returns the rows that process 0 has read.
    """
    with failing_together():
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
    """Write the record of a row's text, then the row's losses by position, and then the row.

    A record applies to the row with the same key and loss. If a sweep is killed before it writes
    the row, its record therefore applies to no row. The record of an existing row is kept.

    Raises:
      RunFailed: Meanwhile, another sweep has scored a different text with the same name.
    """
    # No other sweep may write between this read and this write.
    with held(workdir, "rows") as still_ours:
        if (line := scored.text) is not None:
            own = read_own(workdir, line.encoding)
            for row in own.losses:
                same_name = row.key[4:8] == line.key[4:8]
                if same_name and own.texts.of(row) not in (UNKNOWN, line.text):
                    raise RunFailed(
                        f"another sweep of {workdir} has scored another text of the same name\n"
                        "run both sweeps with the same length_sweep.tokens and data"
                    )
            if not any(row.key == line.key and own.texts.of(row) for row in own.losses):
                merge_table(workdir / TEXTS_FILE, ScoredText, [line], replace=True)
        still_ours()
        merge_table(workdir / _POSITIONS, PositionLoss, scored.positions)
        merge_rows(workdir / _ROWS, [scored.row])
