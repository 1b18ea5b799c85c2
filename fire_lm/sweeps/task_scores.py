"""`fire-lm evaluate` for text-to-text tasks, which writes answers, their scores, and the table.

A cell is a task at one length. Its predictions are written while they are made, and its rows are
written when all of its examples have been answered. Existing predictions and rows are not computed
again.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from fire_lm.checkpoints import restore_params
from fire_lm.config import Config
from fire_lm.console import Progress
from fire_lm.data import task_examples_of
from fire_lm.data.task_examples import Example, TaskExamples
from fire_lm.errors import FireLMError, RunFailed, UserError, first_line
from fire_lm.evaluation import lengths_refused, say
from fire_lm.evaluation.scoring import parameter_shapes
from fire_lm.experiment import label_in
from fire_lm.experiment.task_evaluation import TextEvaluation
from fire_lm.processes import agreed, by_first
from fire_lm.results import TaskScore, merge_table, read_table
from fire_lm.results.task_rows import FILE
from fire_lm.runs.evaluated import configuration
from fire_lm.runs.predictions import Answering, Prediction, predictions_file, read_predictions
from fire_lm.runs.prompts import whole_lines
from fire_lm.sharding import MeshShape, decoding_layout, make_mesh
from fire_lm.storage import append_to, make_folder, place
from fire_lm.sweeps.claims import claimed
from fire_lm.sweeps.sweep import chosen
from fire_lm.tasks.metrics import Score, scores_of

# The number of seconds between checks of a cell that another process is evaluating.
_EVERY = 10.0
# The number of bootstrap resamples, for metrics that do not compute their own standard error.
_RESAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Cell:
    """A task that a checkpoint answers at one input length."""

    workdir: epath.Path
    step: int
    config: Config
    variant: str
    asked: TextEvaluation
    task: TaskExamples
    length: int

    def row(self, metric: str, score: Score) -> TaskScore:
        asked = self.asked
        return TaskScore(
            run=self.workdir.name,
            encoding=label_in(self.config),
            variant=self.variant,
            step=self.step,
            suite=asked.suite,
            task=self.task.name,
            split=self.split,
            input_length=self.length,
            target_length=asked.data.target_length,
            truncation=asked.data.truncation,
            decoding=asked.decoding,
            context_length=asked.context_length(self.length),
            metric=metric,
            examples=score.examples,
            value=score.value,
            stderr=score.stderr,
        )

    def finished_rows(self) -> list[TaskScore]:
        """Return the rows of this cell in the run's table."""
        key = self.row("", Score(0, 0, 0, 0, 0)).key[1:-1]  # without the run name and the metric
        return [row for row in read_table(self.workdir / FILE, TaskScore) if row.key[1:-1] == key]

    def is_finished(self) -> bool:
        """Return whether the table has the rows of this cell.

        Raises:
          UserError: The predictions from which these rows were computed are for other examples.
        """
        finished = bool(self.finished_rows())
        if finished and self.file.exists():
            read_predictions(self.file, self.task.examples)
        return finished

    @property
    def split(self) -> str:
        """The name of the split, and how its examples are selected."""
        asked, parts = self.asked, [self.asked.split]
        if asked.inputs_below is not None:
            parts.append(f"inputs below {asked.inputs_below}")
        if asked.examples:
            parts.append(f"{len(self.task.examples)} drawn")
        return ", ".join(parts)

    @property
    def file(self) -> epath.Path:
        asked = self.asked
        parts = (self.task.name, self.split, self.variant, self.step, self.length)
        how = (asked.data.target_length, asked.data.truncation, asked.decoding)
        return predictions_file(self.workdir, *parts, *how)


def evaluate(arguments: argparse.Namespace) -> None:
    """Evaluate each checkpoint, write the rows into its run's folder, and print them.

    If there are several checkpoints, one that fails is reported and skipped.

    Raises:
      UserError, RunFailed: The only checkpoint, or some of several, could not be evaluated.
    """
    checkpoints, _ = by_first(lambda: chosen(arguments))
    failed = 0
    for name, step in checkpoints:
        try:
            evaluate_checkpoint(arguments, place(name), step)
        except FireLMError as error:
            if len(checkpoints) == 1:
                raise
            failed += 1
            say(f"{name}@{step} is skipped: {first_line(error)}")
    if failed:
        raise RunFailed(f"{failed} of {len(checkpoints)} checkpoints could not be evaluated")


def evaluate_checkpoint(arguments: argparse.Namespace, workdir: epath.Path, step: int) -> None:
    """Answer and score the missing cells of a checkpoint, and then print the rows of all cells."""
    config, variant = configuration(arguments, workdir)
    asked: TextEvaluation = config.call("evaluate")
    if arguments.lengths:
        asked = dataclasses.replace(asked, lengths=tuple(arguments.lengths))
    model = config.call("build_decoder")
    contexts = {length: asked.context_length(length) for length in asked.lengths}
    refused = lengths_refused(model, sorted(contexts.values()))
    lengths = [length for length, context in contexts.items() if context not in refused]
    for context, why in refused.items():
        say(f"{workdir} is not evaluated at {context} tokens: {why.partition(chr(10))[0]}")
    if not lengths:
        raise UserError(f"{workdir}: {refused[min(refused)]}")
    whole = task_examples_of(asked.data, split=asked.split, longest=max(lengths) - 1)
    tasks = [selected(task, asked) for task in whole]
    cells = [
        Cell(workdir, step, config, variant, asked, task, length)
        for task in tasks
        for length in sorted(lengths)
    ]
    if asked.rank and any(encoding.uses_context_length for encoding in model.encodings):
        raise UserError(
            "answers of different lengths cannot be ranked with an encoding that depends on the "
            "length of the input: set evaluate.rank = False"
        )
    missing = [cell for cell in cells if not by_first(cell.is_finished)]
    if arguments.dry_run:
        say(
            f"{workdir}@{step}: {', '.join(task.name for task in tasks)} at {lengths}, "
            f"{asked.decoding}; {len(missing)} of {len(cells)} cells are to be evaluated"
        )
        return
    for cell in missing:
        check_choices(cell)
    if missing:
        mesh = make_mesh(MeshShape())
        like = decoding_layout(parameter_shapes(model), mesh)
        params, _ = restore_params(str(workdir), step, like)
        for cell in missing:
            evaluate_cell(cell, params, mesh)
    if jax.process_index() == 0:
        print("\n".join(table([row for cell in cells for row in cell.finished_rows()])))
        print(workdir / FILE)


def selected(task: TaskExamples, asked: TextEvaluation) -> TaskExamples:
    """Return the task with the examples that are to be answered; report those left out."""
    if asked.inputs_below is not None:
        total = len(task.examples)
        task = task.with_inputs_below(asked.inputs_below)
        count = len(task.examples)
        say(
            f"{count} of {total} inputs of {task.name} have fewer than {asked.inputs_below:,} "
            f"tokens and are selected; {total - count} are left out"
        )
    return drawn(task, asked.examples)


def drawn(task: TaskExamples, count: int | None) -> TaskExamples:
    """Return the task with `count` of its examples, drawn with a fixed seed and kept in order.

    If `count` is None or at least the number of examples, all examples are kept.
    """
    if count is None or count >= len(task.examples):
        return task
    picked = np.random.default_rng(0).permutation(len(task.examples))[:count]
    kept = [task.examples[index] for index in sorted(picked)]
    return dataclasses.replace(task, examples=kept)


def evaluate_cell(cell: Cell, params: Any, mesh: Mesh) -> None:
    """Answer the remaining examples of a cell and write its rows.

    If another process is evaluating the cell, wait for that process.
    """
    claim_name = f"tasks-{cell.file.stem}"
    while True:
        with claimed(cell.workdir, claim_name, jax.process_index() == 0) as claim:
            if agreed(claim):
                if by_first(cell.is_finished):
                    return
                answer(cell, params, mesh)
                by_first(lambda: write_rows(cell))
                return
        say(f"{cell.file.name} is being answered by another process: waiting for it")
        time.sleep(_EVERY)


def answer(cell: Cell, params: Any, mesh: Mesh) -> None:
    """Append the missing predictions to the cell's file, batch by batch."""
    examples = cell.task.examples
    there = set(by_first(lambda: list(read_predictions(cell.file, examples))))
    left = [example for example in examples if example.id not in there]
    if there:
        say(f"{len(there)} of {len(examples)} predictions are in {cell.file} already")
    if not left:
        return
    model = cell.config.call("build_decoder")
    answering = Answering(cell.asked, model, params, mesh)
    first = jax.process_index() == 0
    progress = Progress(len(left), quiet=not first)
    make_folder(cell.file.parent)
    file = append_to(cell.file, whole_lines, in_parts=False) if first else None
    where = f"{cell.task.name} at {cell.length}"
    try:
        for batch in answering.answers(left, cell.length, lambda n: progress.show(n, where)):
            for prediction in batch:
                if file is not None:
                    file.append(prediction.line())
    finally:
        progress.close()
        if file is not None:
            file.close()


def check_choices(cell: Cell) -> None:
    """Raise UserError if answers are to be ranked and an example does not name its answers."""
    if not cell.asked.rank or cell.asked.choices:
        return
    for example in cell.task.examples:
        if not example.choices:
            raise UserError(
                f"the example {example.id} of {cell.task.name} does not say which answers it "
                "allows: set evaluate.choices = ('A', 'B'), or evaluate.rank = False"
            )


def write_rows(cell: Cell) -> None:
    """Score the predictions of a cell and add its rows to the table."""
    found = read_predictions(cell.file, cell.task.examples)
    cut = sum(found[example.id].truncated for example in cell.task.examples)
    if cut:
        say(
            f"{cut} of {len(found)} inputs of {cell.task.name} have more than {cell.length} tokens "
            f"and were truncated ({cell.asked.data.truncation})"
        )
    rows = [cell.row(name, score) for name, score in scored(cell.task, found).items()]
    merge_table(cell.workdir / FILE, TaskScore, rows)


def scored(task: TaskExamples, found: dict[str, Prediction]) -> dict[str, Score]:
    """Return the scores of all metrics, keyed by name.

    An example on which the postprocessing or a metric fails is reported and left out.
    """
    examples: list[Example] = []
    predictions: list[Any] = []
    lost: dict[str, str] = {}
    for example in task.examples:
        try:
            predictions.append(task.prediction(found[example.id].prediction, example.fields))
            examples.append(example)
        except Exception as error:  # the task's own code can raise anything
            lost[example.id] = str(error).partition("\n")[0] or type(error).__name__
    tell_lost(f"the postprocess_fn of {task.name}", lost, len(task.examples))
    targets = [example.target for example in examples]
    ids = [example.id for example in examples]
    scores: dict[str, Score] = {}
    for metric in task.metrics:
        values, failures = scores_of(metric, targets, predictions, ids)
        name = getattr(metric, "__name__", type(metric).__name__)
        tell_lost(f"the metric {name} of {task.name}", failures, len(ids))
        kept = [index for index, one in enumerate(ids) if one not in failures]
        pairs = [targets[i] for i in kept], [predictions[i] for i in kept]
        for name, score in values.items():
            if math.isnan(score.stderr):
                score = dataclasses.replace(score, stderr=resampled(metric, name, *pairs))
            scores[name] = score
    return scores


def tell_lost(what: str, lost: dict[str, str], total: int) -> None:
    for key, why in list(lost.items())[:3]:
        say(f"{what} fails on the example {key}: {why}")
    if lost:
        say(f"{what} fails on {len(lost)} of {total} examples, which are left out")


def resampled(metric: Any, name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> float:
    """Return a bootstrap estimate of a metric's standard error.

    The result is NaN if there are fewer than two examples, or if the metric fails on a resample.
    """
    if len(targets) < 2:
        return math.nan
    random, values = np.random.default_rng(0), []
    try:
        for _ in range(_RESAMPLES):
            picked = random.integers(len(targets), size=len(targets))
            again = metric([targets[i] for i in picked], [predictions[i] for i in picked])
            values.append(float(again[name]))
    except Exception:  # a user's metric may need all examples
        return math.nan
    return float(np.std(values, ddof=1))


def table(rows: Sequence[TaskScore]) -> list[str]:
    """Return the rows as lines to print."""
    return [
        f"{row.task} ({row.split}) at {row.input_length}: {row.metric} {row.value:.2f} "
        f"± {row.stderr:.2f}, {row.examples} examples, {row.decoding}"
        for row in rows
    ]
