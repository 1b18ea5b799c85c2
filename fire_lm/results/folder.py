"""All that a report shows of some runs, as rows; and the folder of CSV files that holds them.

A report writes these files beside its page, and can be drawn again from them alone, without the
runs: our own evidence is such a folder.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from etils import epath

from fire_lm.errors import UserError
from fire_lm.results.scored_text import FILE as TEXTS_FILE
from fire_lm.results.scored_text import ScoredText, Texts
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import (
    AttentionScore,
    BiasValue,
    LearnedNumber,
    LengthAccuracy,
    PositionLoss,
    RotaryPeriod,
    TrainedTask,
    TrainingPoint,
    read_table,
    write_table,
)
from fire_lm.storage import make_folder


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The facts of a run: what it is, how far it has come, and where.

    Attributes:
      arm: what it is called in figures; runs that differ by their seed alone have one name.
      model: its size, in words.
      parameters, encoding_parameters: all of them, and those of the encoding among them.
      train_length, batch_size: tokens in a training sequence, and sequences in a step.
      step, train_steps: done (as the newest line of its metrics says), and asked for.
      data: that it was trained on.
      machine: that its newest start ran on.
      began: the day of its first start, UTC.
      seconds: of all its starts, without the time between them.
    """

    run: str
    encoding: str
    arm: str
    seed: int
    model: str
    parameters: int
    encoding_parameters: int
    train_length: int
    batch_size: int
    step: int
    train_steps: int
    data: str
    machine: str
    began: str
    seconds: float

    @property
    def ended(self) -> bool:
        return self.step >= self.train_steps


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting in which runs of a report differ, and its value in one of them."""

    run: str
    name: str
    value: str


@dataclasses.dataclass(frozen=True)
class Results:
    """Rows of each kind; of checkpoints, those of each run's newest one that was scored."""

    runs: Sequence[RunFacts] = ()
    settings: Sequence[Setting] = ()
    losses: Sequence[SweepRow] = ()
    scored: Sequence[ScoredText] = ()
    positions: Sequence[PositionLoss] = ()
    training: Sequence[TrainingPoint] = ()
    learned: Sequence[LearnedNumber] = ()
    periods: Sequence[RotaryPeriod] = ()
    biases: Sequence[BiasValue] = ()
    scores: Sequence[AttentionScore] = ()
    tasks: Sequence[TrainedTask] = ()
    accuracies: Sequence[LengthAccuracy] = ()

    @functools.cached_property
    def texts(self) -> Texts:
        """The texts that losses are of."""
        return Texts(self.scored)

    def arms(self) -> dict[str, list[RunFacts]]:
        """The runs of each arm, by seed."""
        found: dict[str, list[RunFacts]] = {}
        for facts in sorted(self.runs, key=lambda facts: facts.seed):
            found.setdefault(facts.arm, []).append(facts)
        return found


_FILES: dict[str, tuple[str, type[Any]]] = {
    "runs": ("runs.csv", RunFacts),
    "settings": ("settings.csv", Setting),
    "losses": ("length_sweep.csv", SweepRow),
    "scored": (TEXTS_FILE, ScoredText),
    "positions": ("position_losses.csv", PositionLoss),
    "training": ("training.csv", TrainingPoint),
    "learned": ("learned_numbers.csv", LearnedNumber),
    "periods": ("rotary_periods.csv", RotaryPeriod),
    "biases": ("biases.csv", BiasValue),
    "scores": ("attention_scores.csv", AttentionScore),
    "tasks": ("trained_tasks.csv", TrainedTask),
    "accuracies": ("length_accuracy.csv", LengthAccuracy),
}


def holds_results(folder: epath.Path) -> bool:
    return (folder / _FILES["runs"][0]).exists()


def read_results(folder: epath.Path) -> Results:
    """
    Raises:
      RunFailed: a file is damaged. UserError: there are no results.
    """
    if not holds_results(folder):
        raise UserError(f"{folder} holds no results (no {_FILES['runs'][0]})")
    return Results(
        **{name: read_table(folder / file, kind) for name, (file, kind) in _FILES.items()}
    )


def write_results(folder: epath.Path, results: Results) -> None:
    """A kind without rows leaves no file, nor one from before."""
    make_folder(folder)
    for name, (file, kind) in _FILES.items():
        rows = getattr(results, name)
        if rows:
            write_table(folder / file, kind, rows)
        else:
            (folder / file).unlink(missing_ok=True)


def joined(parts: Sequence[Results]) -> Results:
    """Join the results of several folders."""
    return Results(
        **{name: [row for part in parts for row in getattr(part, name)] for name in _FILES}
    )
