"""The command `fire-lm evaluate`: accuracy by length of runs trained on a synthetic task."""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Sequence

from etils import epath

from fire_lm.console import Progress
from fire_lm.data import Synthetic
from fire_lm.errors import UserError
from fire_lm.evaluation import lengths_refused, say
from fire_lm.evaluation.length_accuracy import (
    Answering,
    at_test,
    length_accuracies,
    slot_answers,
)
from fire_lm.evaluation.scoring import read_params
from fire_lm.experiment import label_in
from fire_lm.models import Decoder
from fire_lm.reporting.gather import trained_tasks
from fire_lm.reporting.length_accuracy import accuracy_text, write_figure
from fire_lm.results import LengthAccuracy, TaskScore, merge_table, read_own, write_table
from fire_lm.results.folder import Results
from fire_lm.runs.answers import generated_answers
from fire_lm.runs.evaluated import configuration
from fire_lm.runs.saved import newest_config, saved_config
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.storage import make_folder, place, require_folder
from fire_lm.sweeps.sweep import chosen
from fire_lm.tasks.synthetic.layouts import row_length
from fire_lm.tasks.synthetic.scoring import Tally

FILE = "length_accuracy.csv"
SCORES = "task_scores.csv"

# The number of seconds between two writes of the table, which is replaced as a whole.
_WRITE_EVERY = 5.0


@dataclasses.dataclass(frozen=True)
class TaskEvaluation:
    """The measurement of a checkpoint on a synthetic task.

    Attributes:
      workdir: The run directory.
      step: The step of the checkpoint.
      model: The model, with the positions of the test.
      data: The task and its layout.
      encoding: The name of the encoding in the table.
      variant: The name of the variant in the table.
      lengths: The lengths of exercises, ascending, that the task has and the model can read.
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
        """The name of the positions of the test."""
        return getattr(self.model.resampling, "evaluation", "plain")

    def row(self, length: int, counted: Tally) -> LengthAccuracy:
        """Return the row of a result."""
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
        """Return the rows of this evaluation in the run's own table, for all lengths."""
        of_these = self.row(0, Tally(1, 1, 1, 1)).key[:-1]
        own = read_own(self.workdir, self.encoding).accuracies
        return sorted((r for r in own if r.key[:-1] == of_these), key=lambda row: row.length)

    def rows_there(self) -> list[LengthAccuracy]:
        """Return the rows in the run's own table for the requested lengths.

        Raises:
          UserError: The rows have another number of exercises.
        """
        found = [row for row in self.all_rows() if row.length in self.lengths]
        for row in found:
            if row.sequences != self.sequences:
                raise UserError(
                    f"{self.workdir / FILE} has {row.sequences} exercises of length {row.length}, "
                    f"not {self.sequences}: set --sequences={row.sequences}, or move the file away"
                )
        return found


def evaluate(arguments: argparse.Namespace) -> None:
    """Write rows beside each run, and a table and figure of all runs in the top folder."""
    if arguments.output:
        require_folder(place(arguments.output), "--output")
    checkpoints, top = chosen(arguments)
    asked = [evaluation_of(arguments, place(name), step) for name, step in checkpoints]
    missing = [left_to_measure(one) for one in asked]
    if arguments.dry_run:
        for one, lengths in zip(asked, missing, strict=True):
            print(
                f"{one.workdir}@{one.step}: {one.data.task.label}, {one.data.layout}, positions "
                f"{one.positions}; {len(lengths)} of {len(one.lengths)} lengths to measure"
            )
        return
    for one, lengths in zip(asked, missing, strict=True):
        if lengths:
            measure(one, lengths)
    combine(asked, place(top))


def evaluation_of(arguments: argparse.Namespace, workdir: epath.Path, step: int) -> TaskEvaluation:
    """Return the requested evaluation of a checkpoint.

    Raises:
      UserError: The run was trained on text, or there is no length to measure.
    """
    config, variant = configuration(arguments, workdir)
    data = config.call("pretrain").data
    if not isinstance(data, Synthetic):
        raise UserError(
            f"{workdir} was trained on text, not on a synthetic task: `fire-lm sweep` scores it"
        )
    model: Decoder = config.call("build_decoder")
    try:
        model = model.clone(resampling=at_test(model.resampling, arguments.positions))
    except UserError as error:
        raise UserError(f"{workdir}: {error}") from None
    lengths = arguments.lengths or tuple(sorted(set(config.values("length_sweep")["lengths"])))
    if not lengths:
        raise UserError("EVAL_LENGTHS is empty: set lengths of exercises, such as --lengths=1-40")
    return TaskEvaluation(
        *(workdir, step, model, data, label_in(config), variant),
        lengths_taken(model, data, lengths, str(workdir)),
        arguments.sequences,
    )


def lengths_taken(
    model: Decoder, data: Synthetic, lengths: Sequence[int], run: str
) -> tuple[int, ...]:
    """Return the lengths that the task has and the model can read; report why others are not."""
    refused: dict[int, str] = {}
    tokens: dict[int, int] = {}
    for length in lengths:
        try:
            data.task.check_length(length)
            tokens[length] = row_length(data.task, data.layout, length)
        except UserError as error:
            refused[length] = str(error)
    unread = lengths_refused(model, sorted(set(tokens.values())))
    refused |= {length: unread[count] for length, count in tokens.items() if count in unread}
    if len(refused) == len(lengths):
        raise UserError(f"{run} at length {lengths[0]}: {refused[lengths[0]]}")
    for why in dict.fromkeys(refused.values()):
        of_these = ", ".join(str(n) for n in lengths if refused.get(n) == why)
        say(f"{run} is not measured at length {of_these}: {why.partition(chr(10))[0]}")
    return tuple(length for length in lengths if length not in refused)


def left_to_measure(asked: TaskEvaluation) -> list[int]:
    """Return the lengths that have not been measured yet."""
    there = {row.length for row in asked.rows_there()}
    return [length for length in asked.lengths if length not in there]


def measure(asked: TaskEvaluation, lengths: Sequence[int]) -> None:
    """Measure these lengths; if interrupted, write the results so far."""
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
    merge_table(asked.workdir / SCORES, TaskScore, scores(asked, asked.all_rows()))


def scores(asked: TaskEvaluation, rows: Sequence[LengthAccuracy]) -> list[TaskScore]:
    """Return the mean accuracies over the measured lengths of training, and over longer ones."""
    longest = asked.data.max_length
    groups = [[row for row in rows if (row.length > longest) == longer] for longer in (False, True)]
    return [_score(asked, group) for group in groups if group]


def _score(asked: TaskEvaluation, rows: Sequence[LengthAccuracy]) -> TaskScore:
    task, lengths = asked.data.task, [row.length for row in rows]
    errors = math.hypot(*(row.stderr for row in rows))
    return TaskScore(
        run=asked.workdir.name,
        encoding=asked.encoding,
        variant=asked.variant,
        step=asked.step,
        suite="synthetic",
        task=task.label,
        split=f"{len(rows)} lengths, {min(lengths)} to {max(lengths)}, {asked.positions} positions",
        input_length=max(map(task.input_length, lengths)),
        target_length=max(map(task.answer_length, lengths)),
        truncation="none",
        decoding="slots" if asked.data.layout == "slots" else "greedy",
        context_length=max(row_length(task, asked.data.layout, length) for length in lengths),
        metric="accuracy",
        examples=sum(row.sequences for row in rows),
        value=statistics.fmean(row.accuracy for row in rows),
        stderr=errors / len(rows),
    )


def combine(asked: Sequence[TaskEvaluation], top: epath.Path) -> None:
    """Write a table and figure of these evaluations, and for several runs their common CSV file."""
    rows = [row for one in asked for row in one.rows_there()]
    make_folder(top)
    if newest_config(top) is None:
        write_table(top / FILE, LengthAccuracy, rows)
    configs = {one.workdir.name: saved_config(one.workdir) for one in asked}
    results = Results(tasks=trained_tasks(configs), accuracies=rows)
    write_figure(results, top / "length_accuracy.png")
    print(f"\n{accuracy_text(results)}\n\n{top / FILE}, .png")
