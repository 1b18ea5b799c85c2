"""Accuracy on the synthetic task that a run was trained on, by the length of the exercises."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
from jax.sharding import Mesh

from fire_lm.console import Progress
from fire_lm.data import Synthetic
from fire_lm.errors import UserError
from fire_lm.measures.base import Cell, Measure, RunModel
from fire_lm.measures.exercise_answers import Answering, generated_answers, slot_answers
from fire_lm.measures.readable_lengths import readable_lengths
from fire_lm.models import Decoder
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.results import LengthAccuracy, TaskScore, merge_table, read_own
from fire_lm.results.task_rows import FILE as SCORES
from fire_lm.tasks.synthetic import Task
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.layouts import row_length
from fire_lm.tasks.synthetic.scoring import Tally, mean_weights, tally
from fire_lm.training import check_vocabulary

FILE = "length_accuracy.csv"

TestPositions = Literal["plain", "even", "random"]


@dataclasses.dataclass(frozen=True)
class AccuracyByLength(Measure):
    """The accuracy of a model on exercises of several lengths.

    The means over the lengths of training and over longer ones are rows of `task_scores.csv`.

    Attributes:
      data: The task and its layout.
      lengths: The requested lengths of exercises.
      positions: The kind of positions used in the test; None selects the configured kind.
      sequences: The number of exercises of each length.
    """

    data: Synthetic
    lengths: tuple[int, ...]
    positions: TestPositions | None = None
    sequences: int = 128

    name = "length_accuracy"
    table = FILE
    Row = LengthAccuracy
    resumes = True
    write_every = 5.0

    def identity(self, run_model: RunModel) -> Any:
        kind = self.data.task.label, self.data.layout, self._positions(run_model)
        return *kind, self.lengths

    def recorded(self) -> dict[str, str]:
        return {}  # the keys of the rows contain all settings

    def check(self, run_model: RunModel) -> None:
        """Raise UserError if the model lacks these positions, or no length can be measured."""
        try:
            check_vocabulary(self.data, self._model(run_model).vocab_size)
        except UserError as error:
            raise UserError(f"{run_model.workdir}: {error}") from None
        if not self.lengths:
            raise UserError(
                "EVAL_LENGTHS is empty: pass exercise lengths, for example --lengths=1-40"
            )
        self._lengths(run_model)

    def clash(self, run_model: RunModel, other: Measure) -> str:
        return ""  # the seed is fixed, so exercises with equal names are equal

    def plan(self, run_model: RunModel, step: int) -> list[Cell]:
        """Return one cell for all lengths."""
        layout, positions = self.data.layout, self._positions(run_model)
        claim = f"accuracy-{step}-{run_model.variant or 'plain'}-{layout}-{positions}"
        return [Cell(run_model, step, (self.data.task.label, layout, positions), claim)]

    def rows_of(self, cell: Cell) -> list[LengthAccuracy]:
        """Return the rows of all measured lengths from the run's table."""
        own = read_own(cell.workdir, cell.run_model.encoding).accuracies
        of_cell = (*cell.columns, *cell.key)
        return sorted((r for r in own if r.key[:-1] == of_cell), key=lambda row: row.length)

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[LengthAccuracy]:
        task, lengths = self.data.task, self._left(cell)
        if not lengths:
            return
        of_layout = slot_answers if self.data.layout == "slots" else generated_answers
        answering: Answering = of_layout(self._model(cell.run_model), params(), task)
        progress = Progress(len(lengths))
        measured = length_accuracies(task, lengths, answering, sequences=self.sequences)
        with contextlib.closing(progress):
            for done, (length, counted) in enumerate(measured, 1):
                where = f"{cell.run_model.run}: {task.label} at length {length}"
                progress.show(done, f"{where}, {counted.accuracy:.1f} %")
                numbers = (counted.sequences, counted.accuracy, counted.stderr)
                yield self.row(cell, length, *numbers)

    def finish(self, cell: Cell) -> None:
        """Write the means of all measured lengths, and remove those of fewer lengths."""
        means = self.means(cell, self.rows_of(cell))
        measurements = {_measurement(row) for row in means}
        merge_table(
            cell.workdir / SCORES,
            TaskScore,
            means,
            replace=True,
            outdated=lambda row: _measurement(row) in measurements,
        )

    def means(self, cell: Cell, rows: Sequence[LengthAccuracy]) -> list[TaskScore]:
        """Return the mean accuracy over training lengths, and the mean over longer lengths.

        The means have the weights of `mean_weights`. A mean is omitted if none of its lengths has
        been measured.
        """
        longest = self.data.max_length
        groups = [[r for r in rows if (r.length > longest) == longer] for longer in (False, True)]
        return [self._mean(cell, group) for group in groups if group]

    def _mean(self, cell: Cell, rows: Sequence[LengthAccuracy]) -> TaskScore:
        label, layout, positions = cell.key
        task, lengths = self.data.task, [row.length for row in rows]
        weights = mean_weights(lengths)
        return TaskScore(
            *cell.columns,
            suite="synthetic",
            task=label,
            split=f"{_range(lengths)}, {positions} positions",
            input_length=max(map(task.input_length, lengths)),
            target_length=max(map(task.answer_length, lengths)),
            truncation="none",
            decoding="slots" if layout == "slots" else "greedy",
            context_length=max(row_length(task, layout, length) for length in lengths),
            metric="accuracy",
            examples=sum(row.sequences for row in rows),
            value=float(weights @ [row.accuracy for row in rows]),
            stderr=math.hypot(*(weights * [row.stderr for row in rows])),
        )

    def count_missing(self, cell: Cell) -> tuple[int, int]:
        return len(self._left(cell)), len(self._lengths(cell.run_model))

    def _model(self, run_model: RunModel) -> Decoder:
        """Return the model, with the positions that the test uses."""
        model = run_model.model
        return model.clone(resampling=at_test(model.resampling, self.positions))

    def _positions(self, run_model: RunModel) -> TestPositions:
        """Return the kind of positions of test inputs."""
        resampling = self._model(run_model).resampling
        return cast(TestPositions, getattr(resampling, "evaluation", "plain"))

    def _lengths(self, run_model: RunModel) -> tuple[int, ...]:
        """Return, in ascending order, the lengths that the task supports and the model can read."""
        model, run = self._model(run_model), str(run_model.workdir)
        return exercise_lengths(model, self.data, self.lengths, run)

    def _left(self, cell: Cell) -> list[int]:
        """Return the lengths that have not been measured yet.

        Raises:
          UserError: A requested length was measured with a different number of exercises.
        """
        lengths, measured = self._lengths(cell.run_model), set()
        for row in self.rows_of(cell):
            if row.length in lengths and row.sequences != self.sequences:
                raise UserError(
                    f"{self.file(cell.workdir)} has {row.sequences} exercises of length "
                    f"{row.length}, not {self.sequences}: pass --sequences={row.sequences}, or "
                    "move the file away"
                )
            measured.add(row.length)
        return [length for length in lengths if length not in measured]


def _measurement(row: TaskScore) -> tuple[str | int, ...]:
    """Return what all means of a measurement have in common.

    Their lengths may differ, and so may the names that the run had.
    """
    model = row.encoding, row.variant, row.step
    return *model, row.suite, row.task, row.decoding, row.split.rpartition(", ")[2]


def _range(lengths: Sequence[int]) -> str:
    if len(lengths) == 1:
        return f"length {lengths[0]}"
    return f"lengths {lengths[0]} to {lengths[-1]} ({len(lengths)} measured)"


def length_accuracies(
    task: Task,
    lengths: Sequence[int],
    answering: Answering,
    *,
    sequences: int,
    batch_size: int = 64,
) -> Iterator[tuple[int, Tally]]:
    """Yield each length with the tally of a model's answers to `sequences` test exercises.

    At most `batch_size` exercises are answered together.

    Raises:
      UserError: The task has no exercises of one of the lengths.
    """
    batch_size = min(batch_size, sequences)
    for length in lengths:
        samples = fixed_samples(task, length, 0, range(sequences))
        counted = Tally()
        for start in range(0, sequences, batch_size):
            part = samples[start : start + batch_size]
            filled = part + part[-1:] * (batch_size - len(part))  # all batches share one program
            truth = np.stack([sample.answer for sample in part])
            counted += tally(task, truth, answering(filled, length)[: len(part)])
        yield length, counted


def at_test(resampling: Resampling, positions: TestPositions | None) -> Resampling:
    """Return the resampling that determines the positions of test inputs.

    `plain` selects the positions 0, 1, 2 and so on. For a model that was trained with randomized
    positions, `even` spreads the positions evenly over the range from which training positions were
    drawn, and `random` uses one fixed random draw. None selects the model's own evaluation
    positions.

    Raises:
      UserError: `even` or `random` is requested for a model that was not trained with randomized
        positions.
    """
    if positions is None:
        return resampling
    if positions == "plain":
        return Resampling()
    if not isinstance(resampling, RandomizedPositions):
        raise UserError(
            f"--positions={positions} requires a model trained with RandomizedPositions, not "
            f"{type(resampling).__name__}: use --positions=plain"
        )
    return dataclasses.replace(resampling, evaluation=positions)


def exercise_lengths(
    model: Decoder, data: Synthetic, lengths: Sequence[int], run: str
) -> tuple[int, ...]:
    """Return the lengths that the task supports and the model can read; see `readable_lengths`."""
    refused: dict[int, str] = {}
    tokens: dict[int, int] = {}
    for length in lengths:
        try:
            data.task.check_length(length)
            # Generation also gives a position to the last symbol.
            generated = data.layout == "autoregressive"
            tokens[length] = row_length(data.task, data.layout, length) + generated
        except UserError as error:
            refused[length] = str(error)
    return readable_lengths(model, tokens, run, refused)
