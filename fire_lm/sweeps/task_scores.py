"""The command `fire-lm evaluate` for downstream tasks, which generates and scores answers."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence

import jax
from etils import epath

from fire_lm.experiment import Experiment
from fire_lm.processes import failing_together, say
from fire_lm.results import TaskScore, read_table
from fire_lm.results.task_rows import FILE
from fire_lm.sweeps.schedule import evaluate_checkpoints
from fire_lm.sweeps.settings import check_effects, settings
from fire_lm.sweeps.task_answers import answer_checkpoint
from fire_lm.sweeps.task_settings import TaskSetting, cells


def evaluate(arguments: argparse.Namespace) -> None:
    """Write each checkpoint's predictions and rows to its run's directory, and print the rows.

    Raises:
      UserError, RunFailed: See `evaluate_checkpoints`.
    """
    evaluate_checkpoints(TaskScores(arguments))


@dataclasses.dataclass(frozen=True)
class TaskScores:
    """The evaluation of checkpoints on downstream tasks, an implementation of `schedule.Verb`."""

    arguments: argparse.Namespace

    def folder(self, workdirs: Sequence[epath.Path], named: Iterable[epath.Path]) -> str:
        return ""  # `fire-lm report` combines the rows of several runs

    def check(self, workdirs: Iterable[epath.Path]) -> None:
        check_effects(self._setting, self.arguments, workdirs)

    def describe(self, workdir: epath.Path, step: int) -> None:
        for one in self._settings(workdir):
            of_one = cells(one, workdir, step)
            missing = sum(not cell.is_finished() for cell in of_one)
            tasks = dict.fromkeys(cell.task.name for cell in of_one)
            lengths = ", ".join(map(str, dict.fromkeys(cell.length for cell in of_one)))
            also = f" also {one.also}" * bool(one.also)
            say(
                f"{workdir}@{step}{also}: {', '.join(tasks)} at {lengths}, {one.asked.decoding}; "
                f"{missing} of {len(of_one)} results to compute"
            )

    def score(self, workdir: epath.Path, step: int) -> bool:
        with failing_together():
            asked = self._settings(workdir)
        whole = [answer_checkpoint(one, workdir, step) for one in asked]
        if all(whole) and jax.process_index() == 0:
            rows = read_table(workdir / FILE, TaskScore)
            of_cells = [cell for one in asked for cell in cells(one, workdir, step)]
            found = [row for cell in of_cells for row in cell.rows_in(rows)]
            print("\n".join([f"{workdir}@{step}", *table(found), str(workdir / FILE)]), flush=True)
        return all(whole)

    def scored_steps(self, workdir: epath.Path) -> set[int]:
        rows = read_table(workdir / FILE, TaskScore)
        steps = {row.step for row in rows}
        asked = self._settings(workdir) if rows else []
        return {
            step
            for step in steps
            if any(cell.rows_in(rows) for one in asked for cell in cells(one, workdir, step))
        }

    def combine(self, checkpoints: Sequence[tuple[str, int]], top: str) -> None:
        pass

    def _settings(self, workdir: epath.Path) -> list[TaskSetting]:
        return settings(self._setting, self.arguments, workdir)

    def _setting(self, also: str, config: Experiment, variant: str) -> TaskSetting:
        return TaskSetting(also, config, variant, tuple(self.arguments.lengths or ()))


def table(rows: Sequence[TaskScore]) -> list[str]:
    """Return a printable line for each row."""
    return [
        f"{row.task} ({row.split}) at {row.input_length}: {row.metric} {row.value:.2f} "
        f"± {row.stderr:.2f}, {row.examples} examples, {row.decoding}"
        + f", {row.variant}"
        * bool(row.variant)
        for row in rows
    ]
