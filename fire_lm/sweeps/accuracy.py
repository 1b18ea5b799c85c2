"""The command `fire-lm evaluate` for synthetic tasks, which measures a run's accuracy by length."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Iterable, Sequence

import jax
from etils import epath

from fire_lm.config import Config
from fire_lm.console import Progress
from fire_lm.data import Synthetic
from fire_lm.errors import UserError
from fire_lm.evaluation.length_accuracy import (
    Answering,
    length_accuracies,
    positions_in,
    slot_answers,
)
from fire_lm.evaluation.scoring import read_params
from fire_lm.experiment import label_in
from fire_lm.models import Decoder
from fire_lm.reporting.accuracies import accuracy_text, write_figure
from fire_lm.reporting.gather import trained_tasks
from fire_lm.results import LengthAccuracy, TaskScore, merge_table, read_own, write_table
from fire_lm.results.folder import Results
from fire_lm.results.task_rows import FILE as SCORES
from fire_lm.runs.answers import generated_answers
from fire_lm.runs.find import folder_of_all
from fire_lm.runs.saved import newest_config, saved_config
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.storage import make_folder, place, tolerating
from fire_lm.sweeps.accuracy_settings import AccuracySetting
from fire_lm.sweeps.claims import StillOurs, claimed, kept
from fire_lm.sweeps.schedule import check_output, evaluate_checkpoints
from fire_lm.sweeps.settings import check_effects, settings
from fire_lm.tasks.synthetic.layouts import row_length
from fire_lm.tasks.synthetic.scoring import Tally, mean_weights

FILE = "length_accuracy.csv"

_SEQUENCES = 128  # the default number of exercises of each length
# The minimum number of seconds between two writes of the table; each write replaces the file.
_WRITE_EVERY = 5.0


@dataclasses.dataclass(frozen=True)
class TaskEvaluation:
    """A requested measurement of a checkpoint on a synthetic task.

    Attributes:
      workdir: The run directory.
      step: The step of the checkpoint.
      model: The model, with the positions that the test uses.
      data: The task and its layout.
      encoding: The name of the encoding in the table.
      variant: The name of the changes to the model since training, or "" if there are none.
      lengths: The exercise lengths that the task supports and the model can read, in ascending
        order.
      sequences: The number of exercises of each length.
    """

    workdir: epath.Path
    step: int
    model: Decoder
    data: Synthetic
    encoding: str
    variant: str
    lengths: tuple[int, ...]
    sequences: int

    @property
    def positions(self) -> str:
        """The kind of positions that the test uses: `plain`, `even` or `random`."""
        return positions_in(self.model)

    @property
    def claim(self) -> str:
        """The name under which a process claims this measurement."""
        kind = (self.step, self.variant or "plain", self.data.layout, self.positions)
        return "-".join(map(str, ("accuracy", *kind)))

    def row(self, length: int, counted: Tally) -> LengthAccuracy:
        """Return the table row for the result at one length."""
        return LengthAccuracy(
            run=self.workdir.name,
            encoding=self.encoding,
            variant=self.variant,
            step=self.step,
            task=self.data.task.label,
            layout=self.data.layout,
            positions=self.positions,
            length=length,
            sequences=counted.sequences,
            accuracy=counted.accuracy,
            stderr=counted.stderr,
        )

    def all_rows(self) -> list[LengthAccuracy]:
        """Return this evaluation's rows from the run's table, for all measured lengths."""
        of_these = self.row(0, Tally(1, 1, 1)).key[:-1]
        own = read_own(self.workdir, self.encoding).accuracies
        return sorted((r for r in own if r.key[:-1] == of_these), key=lambda row: row.length)

    def rows_there(self) -> list[LengthAccuracy]:
        """Return this evaluation's rows from the run's table, for the requested lengths.

        Raises:
          UserError: A row was computed from a different number of exercises.
        """
        found = [row for row in self.all_rows() if row.length in self.lengths]
        for row in found:
            if row.sequences != self.sequences:
                raise UserError(
                    f"{self.workdir / FILE} has {row.sequences} exercises of length {row.length}, "
                    f"not {self.sequences}: pass --sequences={row.sequences}, or move the file away"
                )
        return found


def evaluate(arguments: argparse.Namespace) -> None:
    """Write each run's rows to its directory, and combined results to the output folder.

    Raises:
      UserError: This is a job of several processes.
      UserError, RunFailed: See `evaluate_checkpoints`.
    """
    if jax.process_count() > 1:
        raise UserError(
            "runs on synthetic tasks are evaluated on one host: use a slice of one host"
        )
    check_output(arguments)
    evaluate_checkpoints(Accuracies(arguments))


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """The evaluation of checkpoints on synthetic tasks, an implementation of `schedule.Verb`."""

    arguments: argparse.Namespace

    def folder(self, workdirs: Sequence[epath.Path], named: Iterable[epath.Path]) -> str:
        return str(folder_of_all(self.arguments.output, workdirs, named))

    def check(self, workdirs: Iterable[epath.Path]) -> None:
        check_effects(self._setting, self.arguments, workdirs)

    def describe(self, workdir: epath.Path, step: int) -> None:
        for one in self._evaluations(workdir, step):
            variant = f" ({one.variant})" * bool(one.variant)
            print(
                f"{workdir}@{step}{variant}: {one.data.task.label}, {one.data.layout}, positions "
                f"{one.positions}; {len(left_to_measure(one))} of {len(one.lengths)} lengths to "
                "measure"
            )

    def score(self, workdir: epath.Path, step: int) -> bool:
        whole = True
        for one in self._evaluations(workdir, step):
            with claimed(workdir, one.claim) as still_ours:
                whole &= still_ours is not None and kept(
                    lambda: measure_claimed(one, still_ours)  # noqa: B023 (called at once)
                )
        return whole

    def scored_steps(self, workdir: epath.Path) -> set[int]:
        return {row.step for row in read_own(workdir, label_in(saved_config(workdir))).accuracies}

    def combine(self, checkpoints: Sequence[tuple[str, int]], top: str) -> None:
        asked = [one for name, step in checkpoints for one in self._evaluations(place(name), step)]
        combine(asked, place(top))

    def _evaluations(self, workdir: epath.Path, step: int) -> list[TaskEvaluation]:
        return [
            TaskEvaluation(
                *(workdir, step, one.model, one.data, label_in(one.config), one.variant),
                one.lengths(workdir),
                self.arguments.sequences or _SEQUENCES,
            )
            for one in settings(self._setting, self.arguments, workdir)
        ]

    def _setting(self, also: str, config: Config, variant: str) -> AccuracySetting:
        given = tuple(self.arguments.lengths or ())
        return AccuracySetting(also, config, variant, self.arguments.positions, given)


def left_to_measure(asked: TaskEvaluation) -> list[int]:
    """Return the lengths that have not been measured yet."""
    there = {row.length for row in asked.rows_there()}
    return [length for length in asked.lengths if length not in there]


def measure_claimed(asked: TaskEvaluation, still_ours: StillOurs) -> None:
    if lengths := left_to_measure(asked):
        measure(asked, lengths)
    still_ours()
    write_scores(asked)


def measure(asked: TaskEvaluation, lengths: Sequence[int]) -> None:
    """Measure the accuracy at these lengths, and write it to the run's table.

    If the measurement is interrupted, the results so far are written.
    """
    mesh = make_mesh(MeshShape())
    params = read_params(str(asked.workdir), asked.step, asked.model, mesh)
    answers = slot_answers if asked.data.layout == "slots" else generated_answers
    answering: Answering = answers(asked.model, params, asked.data.task)
    rows: list[LengthAccuracy] = []
    progress, written = Progress(len(lengths)), time.monotonic()
    name = f"{asked.workdir.name}: {asked.data.task.label}"
    try:
        for length, counted in length_accuracies(
            asked.data.task, lengths, answering, sequences=asked.sequences
        ):
            rows.append(asked.row(length, counted))
            progress.show(len(rows), f"{name} at length {length}, {counted.accuracy:.1f} %")
            if time.monotonic() - written > _WRITE_EVERY:
                merge_table(asked.workdir / FILE, LengthAccuracy, rows)
                written = time.monotonic()
    finally:
        progress.close()
        merge_table(asked.workdir / FILE, LengthAccuracy, rows)


def write_scores(asked: TaskEvaluation) -> None:
    """Write the means of all measured lengths, and remove those of fewer lengths."""
    means = scores(asked, asked.all_rows())
    of_these = {_measurement(row) for row in means}
    merge_table(
        asked.workdir / SCORES,
        TaskScore,
        means,
        replace=True,
        outdated=lambda row: _measurement(row) in of_these,
    )


def _measurement(row: TaskScore) -> tuple[str | int, ...]:
    """Return what all means of a measurement have in common, whatever their lengths."""
    model = row.run, row.encoding, row.variant, row.step
    return *model, row.suite, row.task, row.decoding, row.split.rpartition(", ")[2]


def scores(asked: TaskEvaluation, rows: Sequence[LengthAccuracy]) -> list[TaskScore]:
    """Return the mean accuracy over training lengths, and the mean over longer lengths.

    The means have the weights of `mean_weights`. A mean is omitted if none of its lengths has been
    measured.
    """
    longest = asked.data.max_length
    groups = [[row for row in rows if (row.length > longest) == longer] for longer in (False, True)]
    return [_score(asked, group) for group in groups if group]


def _score(asked: TaskEvaluation, rows: Sequence[LengthAccuracy]) -> TaskScore:
    task, lengths = asked.data.task, [row.length for row in rows]
    weights = mean_weights(lengths)
    return TaskScore(
        run=asked.workdir.name,
        encoding=asked.encoding,
        variant=asked.variant,
        step=asked.step,
        suite="synthetic",
        task=task.label,
        split=f"{_lengths(lengths)}, {asked.positions} positions",
        input_length=max(map(task.input_length, lengths)),
        target_length=max(map(task.answer_length, lengths)),
        truncation="none",
        decoding="slots" if asked.data.layout == "slots" else "greedy",
        context_length=max(row_length(task, asked.data.layout, length) for length in lengths),
        metric="accuracy",
        examples=sum(row.sequences for row in rows),
        value=float(weights @ [row.accuracy for row in rows]),
        stderr=math.hypot(*(weights * [row.stderr for row in rows])),
    )


def _lengths(lengths: Sequence[int]) -> str:
    if len(lengths) == 1:
        return f"length {lengths[0]}"
    return f"lengths {lengths[0]} to {lengths[-1]} ({len(lengths)} measured)"


def combine(asked: Sequence[TaskEvaluation], top: epath.Path) -> None:
    """Write the combined results of these evaluations, at all measured lengths, and print a table.

    The results are a figure and, unless `top` is a run directory, a CSV file with all rows.
    """
    rows = [row for one in asked for row in one.all_rows()]
    make_folder(top)
    if newest_config(top) is None:
        write_table(top / FILE, LengthAccuracy, rows)
    configs = {one.workdir.name: saved_config(one.workdir) for one in asked}
    results = Results(tasks=trained_tasks(configs), accuracies=rows)
    with tolerating(f"{top / 'length_accuracy.png'}", "the tables are written"):
        write_figure(results, top / "length_accuracy.png")
    print(f"\n{accuracy_text(results)}\n\n{top / FILE}, .png")
