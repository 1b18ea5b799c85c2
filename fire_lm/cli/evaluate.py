"""`fire-lm evaluate`: accuracy on synthetic or downstream tasks, or a measure of your own."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from fire_lm.cli.argument_checks import check_for_tasks
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, evaluates_a_task
from fire_lm.experiment.own_measure import measure_class, split_measure, with_lengths
from fire_lm.hardware.program_cache import keep_programs
from fire_lm.measures import Measure
from fire_lm.measures.length_accuracy import FILE, AccuracyByLength
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.processes import initialize_distributed
from fire_lm.reporting.accuracies import accuracy_text, write_figure
from fire_lm.reporting.gather import run_facts, trained_tasks
from fire_lm.reporting.history import settings_of_history
from fire_lm.results import LengthAccuracy, write_table
from fire_lm.results.folder import Results
from fire_lm.runs.inputs import check_texts_of
from fire_lm.runs.saved import check_same_vocabulary, newest_config, saved_experiment
from fire_lm.storage import make_folder, place, tolerating
from fire_lm.sweeps.command import Command
from fire_lm.sweeps.schedule import evaluate_checkpoints


def run(arguments: argparse.Namespace) -> None:
    """Evaluate the runs by a measure, on downstream tasks, or on their synthetic tasks."""
    keep_programs()
    initialize_distributed()
    if arguments.measure:
        check_for_tasks(arguments)
        measure_class(arguments.measure)  # fails early
        evaluate_checkpoints(OwnMeasure(arguments))
        return
    if evaluates_a_task(arguments.gin_file, arguments.bindings, arguments.gin_search_paths):
        check_for_tasks(arguments)
        evaluate_checkpoints(Tasks(arguments))
        return
    if jax.process_count() > 1:
        raise UserError(
            "runs on synthetic tasks are evaluated on one host: use a slice of one host"
        )
    evaluate_checkpoints(Accuracies(arguments))


class OwnMeasure(Command):
    """The evaluation of runs by the measure that --measure names, such as one of your own."""

    def measure_of(self, experiment: Experiment, workdir: epath.Path) -> Measure:
        """Return the measure that --measure names, with its bindings and --lengths."""
        name = split_measure(self.arguments.measure)[1]
        return with_lengths(experiment.measure(name), self.arguments.lengths)


class Tasks(Command):
    """The evaluation of runs on downstream tasks."""

    def measure_of(self, experiment: Experiment, workdir: epath.Path) -> TextEvaluation:
        """Return the evaluation that the configuration and --lengths describe."""
        evaluation: TextEvaluation = experiment.task
        if self.arguments.lengths:
            evaluation = dataclasses.replace(evaluation, lengths=tuple(self.arguments.lengths))
        check_same_vocabulary(evaluation.data, workdir)
        return evaluation


class Accuracies(Command):
    """The evaluation of runs on the synthetic tasks on which they were trained."""

    combines = True

    def measure_of(self, experiment: Experiment, workdir: epath.Path) -> AccuracyByLength:
        """Return the accuracy on the task of training; UserError if it was text or another task."""
        data: Any = experiment.train.data
        arguments = self.arguments
        if not data.exercises:
            raise UserError(
                f"{workdir} was trained on text, not on a synthetic task: use `fire-lm sweep`"
            )
        trained = saved_experiment(workdir)
        try:
            check_same_task(experiment, trained)
            if arguments.positions:
                check_same_positions(experiment, trained, arguments.positions)
        except UserError as error:
            raise UserError(f"{workdir}: {error}") from None
        check_texts_of(workdir, experiment)
        lengths = arguments.lengths or sorted({*experiment.values("length_sweep")["lengths"]})
        given = {"sequences": arguments.sequences} if arguments.sequences else {}
        return AccuracyByLength(data, tuple(lengths), arguments.positions, **given)

    def combine(self, checkpoints: Sequence[tuple[str, int]], top: str) -> None:
        """Write the rows of these checkpoints, at all measured lengths, and print a table.

        The results are a figure and, unless `top` is a run directory, a CSV file with all rows.
        """
        # A cell has all lengths of a run's table, so settings that differ in lengths share rows.
        by_key: dict[Any, LengthAccuracy] = {}
        for name, step in checkpoints:
            for setting in self.settings(place(name)):
                for cell in setting.measure.plan(setting.run_model, step):
                    by_key |= {row.key: row for row in setting.measure.rows_of(cell)}
        rows = list(by_key.values())
        folder = place(top)
        make_folder(folder)
        if newest_config(folder) is None:
            write_table(folder / FILE, LengthAccuracy, rows)
        places = {place(name).name: place(name) for name, _ in checkpoints}
        experiments = {run: saved_experiment(path) for run, path in places.items()}
        runs = [
            run_facts(place(name), experiments[place(name).name], "", step)
            for name, step in dict(checkpoints).items()
        ]
        tasks = trained_tasks(experiments, settings_of_history(places, experiments))
        results = Results(runs=runs, tasks=tasks, accuracies=rows)
        with tolerating(f"{folder / 'length_accuracy.png'}", "the tables are written"):
            write_figure(results, folder / "length_accuracy.png")
        print(f"\n{accuracy_text(results)}\n\n{folder / FILE}, .png")


def check_same_task(experiment: Experiment, trained: Experiment) -> None:
    """Raise UserError if the task or its layout has changed since training."""
    now: Any = experiment.train.data
    before: Any = trained.train.data
    for name, old, new in (
        ("task", type(before.task).__name__, type(now.task).__name__),
        ("layout", before.layout, now.layout),
        ("max_length", before.max_length, now.max_length),
    ):
        if new != old:
            raise UserError(
                f"Synthetic.{name} was {old} in training, but is now {new}: remove the "
                "--gin. binding or --gin_file that changes it"
            )


def check_same_positions(experiment: Experiment, trained: Experiment, positions: str) -> None:
    """Raise UserError if both --positions and the configuration select other test positions."""
    before, now = trained.model.resampling, experiment.model.resampling
    if now != before:
        raise UserError(
            f"--positions={positions} and the changes to {type(before).__name__} both "
            "select the positions of the test: omit one of them"
        )
