"""The results that a report shows, and the folder of CSV files in which they are stored.

A report writes these files next to its page and can be regenerated from the files without the runs.
The results published with fire_lm are stored in such folders.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from fire_lm.errors import UserError
from fire_lm.results.measured_values import MeasuredValue
from fire_lm.results.scored_text import FILE as TEXTS_FILE
from fire_lm.results.scored_text import ScoredText, Texts
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import (
    AttentionScore,
    BiasValue,
    BudgetSeries,
    KindOfLayer,
    LearnedNumber,
    LengthAccuracy,
    PositionLoss,
    RotaryPeriod,
    ScoredModel,
    TaskScore,
    TrainedTask,
    TrainingPoint,
    read_table,
    write_table,
)
from fire_lm.results.task_rows import FILE as TASK_SCORES_FILE
from fire_lm.storage import make_folder

ENCODER = ", encoder"  # ends `RunFacts.model`


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The properties of a run, its progress, and the machine on which it was trained.

    Those after the seed are empty or 0 where a table of losses does not need them.

    Attributes:
      run: The name of the run.
      encoding: The name of the run's positional encoding.
      arm: The name of the run in figures. Runs that differ only in their seeds share it.
      seed: The seed of the run.
      model: A description of the model's size and, of an encoder, its kind.
      parameters: The total number of parameters.
      encoding_parameters: The number of parameters of the encoding.
      train_length: The number of tokens in the longest training sequences.
      batch_size: The number of such sequences in a step.
      step: The newest step in the run's metrics.
      train_steps: The configured number of steps.
      data: The data on which the run was trained.
      machine: The machine on which the run was last started.
      began: The date of the first start, in UTC.
      seconds: The total training time in seconds over all starts, excluding interruptions.
      lengths: The length schedule in words, or "" if all sequences have `train_length` tokens.
    """

    run: str
    encoding: str
    arm: str
    seed: int
    model: str = ""
    parameters: int = 0
    encoding_parameters: int = 0
    train_length: int = 0
    batch_size: int = 0
    step: int = 0
    train_steps: int = 0
    data: str = ""
    machine: str = ""
    began: str = ""
    seconds: float = 0.0
    lengths: str = ""

    @property
    def trained_at(self) -> str:
        """The training length or lengths."""
        return self.lengths or str(self.train_length)

    @property
    def encoder(self) -> bool:
        """Whether the model sees later tokens, too."""
        return self.model.endswith(ENCODER)

    @property
    def ended(self) -> bool:
        """Whether the run has reached its last step."""
        return self.step >= self.train_steps


@dataclasses.dataclass(frozen=True)
class Setting:
    """The value that one run has for a setting in which the runs of a report differ."""

    run: str
    name: str
    value: str


def _in(file: str, kind: type[Any]) -> Any:
    """Return a field of `Results` with rows of a kind, which are stored in `file` of a folder."""
    return dataclasses.field(default=(), metadata={"file": (file, kind)})


@dataclasses.dataclass(frozen=True)
class Results:
    """The rows that a report shows, with one field for each kind of result.

    Results that belong to a checkpoint come from the newest scored step that all runs of an arm
    share or, if there is none, from the newest scored step of each run; a report then shows each
    step separately. `scored` and `task_scores` contain the rows of all checkpoints, and `earlier`
    contains the losses of earlier steps. `series` names the runs of arms that differ in their
    numbers of steps; it has no rows for other runs.
    """

    runs: Sequence[RunFacts] = _in("runs.csv", RunFacts)
    settings: Sequence[Setting] = _in("settings.csv", Setting)
    losses: Sequence[SweepRow] = _in("length_sweep.csv", SweepRow)
    scored: Sequence[ScoredText] = _in(TEXTS_FILE, ScoredText)
    positions: Sequence[PositionLoss] = _in("position_losses.csv", PositionLoss)
    training: Sequence[TrainingPoint] = _in("training.csv", TrainingPoint)
    learned: Sequence[LearnedNumber] = _in("learned_numbers.csv", LearnedNumber)
    layers: Sequence[KindOfLayer] = _in("layers.csv", KindOfLayer)
    periods: Sequence[RotaryPeriod] = _in("rotary_periods.csv", RotaryPeriod)
    biases: Sequence[BiasValue] = _in("biases.csv", BiasValue)
    scores: Sequence[AttentionScore] = _in("attention_scores.csv", AttentionScore)
    tasks: Sequence[TrainedTask] = _in("trained_tasks.csv", TrainedTask)
    accuracies: Sequence[LengthAccuracy] = _in("length_accuracy.csv", LengthAccuracy)
    task_scores: Sequence[TaskScore] = _in(TASK_SCORES_FILE, TaskScore)
    models: Sequence[ScoredModel] = _in("scored_models.csv", ScoredModel)
    earlier: Sequence[SweepRow] = _in("earlier_steps.csv", SweepRow)
    series: Sequence[BudgetSeries] = _in("series.csv", BudgetSeries)
    measures: Sequence[MeasuredValue] = _in("measures.csv", MeasuredValue)

    @functools.cached_property
    def texts(self) -> Texts:
        """The texts on which the losses were measured."""
        return Texts(self.scored)

    def arms(self) -> dict[str, list[RunFacts]]:
        """Return the runs of each arm, ordered by seed."""
        found: dict[str, list[RunFacts]] = {}
        for facts in sorted(self.runs, key=lambda facts: facts.seed):
            found.setdefault(facts.arm, []).append(facts)
        return found


_FILES: dict[str, tuple[str, type[Any]]] = {
    field.name: field.metadata["file"] for field in dataclasses.fields(Results)
}


def holds_results(folder: epath.Path) -> bool:
    """Return whether a folder contains results in the form that `write_results` writes."""
    return (folder / _FILES["runs"][0]).exists()


def read_results(folder: epath.Path) -> Results:
    """Read the results that `write_results` has stored in a folder.

    Raises:
      RunFailed: A file is damaged.
      UserError: The folder contains no results.
    """
    if not holds_results(folder):
        raise UserError(f"{folder} is not a folder of results (no {_FILES['runs'][0]})")
    return Results(
        **{name: read_table(folder / file, kind) for name, (file, kind) in _FILES.items()}
    )


def write_results(folder: epath.Path, results: Results) -> None:
    """Write a file for each kind of row, and remove existing files of kinds without rows."""
    make_folder(folder)
    for name, (file, kind) in _FILES.items():
        rows = getattr(results, name)
        if rows:
            write_table(folder / file, kind, rows)
        else:
            (folder / file).unlink(missing_ok=True)


def renamed(results: Results, names: Mapping[str, str]) -> Results:
    """Return the results with new names of some runs, by their old names."""
    return Results(
        **{
            field: [
                dataclasses.replace(row, run=names[row.run]) if row.run in names else row
                for row in getattr(results, field)
            ]
            for field in _FILES
        }
    )


def joined(parts: Sequence[Results]) -> Results:
    """Return the combined results of several runs or folders."""
    return Results(
        **{name: [row for part in parts for row in getattr(part, name)] for name in _FILES}
    )
