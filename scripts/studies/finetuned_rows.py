"""The finetuned rows of `paper_rows.py`, with the scores so far and the next commands.

A row is a model of the paper with its scores on one suite. configs/paper/finetuned/MODEL.gin and
configs/finetune/DATA_SET.gin together define the finetuning of the model on a data set, and
configs/tasks/EVALUATION.gin evaluates the result. A run belongs to a row if it was finetuned on one
of the row's data sets and has the row's model at one of the scales (`configs/scales/`). The
training length, the number of steps, the seed and the optimizer settings may differ.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import published
from etils import epath

from fire_lm.data import TextToText
from fire_lm.experiment import Experiment, load_experiment
from fire_lm.reporting.task_columns import has_lengths
from fire_lm.results import TaskScore, read_own
from fire_lm.tasks.suites import SUITES

SCALES = ("paper", "mini", "gpu")


# The task of a score and, if the suite has several lengths, the input length.
TaskAtLength = tuple[str, int | None]


@dataclasses.dataclass(frozen=True)
class FinetunedRow:
    """A model of the paper and a suite for which the paper prints its scores or their average.

    Attributes:
      model: The stem of the file in configs/paper/finetuned/.
      suite: The name of the suite.
      average: The average as printed in the paper, or "" if it is not printed.
      places: The tables of the paper that contain the scores or the average.
    """

    model: str
    suite: str
    average: str
    places: str

    @property
    def scores(self) -> tuple[TaskAtLength, ...]:
        """The task and length of each score in the average."""
        suite = SUITES[self.suite]
        if has_lengths(suite):
            return tuple((suite.columns[0].task, length) for length in suite.lengths)
        return tuple((column.task, None) for column in suite.columns)

    def data_set(self, task: str) -> str:
        """Return the stem of the file in configs/finetune/ with the data set for a task."""
        return self.suite if SUITES[self.suite].together else task

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The data sets on which the model is finetuned, in a separate run for each."""
        return tuple(dict.fromkeys(self.data_set(task) for task, _ in self.scores))

    def evaluation(self, data_set: str) -> str:
        """Return the stem of the file in configs/tasks/ that evaluates runs on a data set."""
        return self.suite if has_lengths(SUITES[self.suite]) else data_set

    @property
    def source(self) -> str:
        """The stem of the file in configs/paper/ that configures the model's pretraining.

        As in the paper, position interpolation is applied in finetuning but not in pretraining.
        """
        return f"{self.model.partition('_')[0]}_rope" if "_rope_pi" in self.model else self.model


@functools.cache
def rows() -> tuple[FinetunedRow, ...]:
    """Return the finetuned rows of the paper, in the order of `published.models`."""
    found = []
    for model in published.models():
        for suite in SUITES:
            cells = [cell for cell in published.cells(model) if cell.dataset == suite]
            if cells:
                average = [c.printed for c in cells if c.metric == f"{suite}_average"]
                numbers = sorted({int(cell.source.removeprefix("Table ")) for cell in cells})
                places = f"Table{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
                found.append(FinetunedRow(model, suite, "".join(average[:1]), places))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Done:
    """A run that belongs to a row.

    Attributes:
      run: The name of the run.
      scale: The scale of the run.
      data_set: The data set on which the run was finetuned.
      scores: The scores of the row that the run has.
    """

    run: str
    scale: str
    data_set: str
    scores: frozenset[TaskAtLength]


def done_in(row: FinetunedRow, runs: Iterable[tuple[epath.Path, Experiment]]) -> list[Done]:
    """Return the runs that belong to a row, with their scores."""
    found = []
    for workdir, config in runs:
        scale = scale_of(row, config)
        if scale is not None:
            own = read_own(workdir, config.label).task_scores
            data_set = _data_set(config)
            mine = {score for score in row.scores if row.data_set(score[0]) == data_set}
            there = {score for score in mine if any(_is_of(r, row.suite, *score) for r in own)}
            found.append(Done(workdir.name, scale, data_set, frozenset(there)))
    return found


def scale_of(row: FinetunedRow, config: Experiment) -> str | None:
    """Return the scale at which a run belongs to a row, or None if it does not belong to it."""
    if config.kind != "finetune" or _data_set(config) not in row.data_sets:
        return None
    if config.label != published.cells(row.model)[0].encoding:
        return None
    ours = _model(config)
    return next((scale for scale in SCALES if _model_at(row.model, scale) == ours), None)


def _data_set(config: Experiment) -> str:
    data = config.train.data
    return data.name.removeprefix("fire_lm:") if isinstance(data, TextToText) else ""


def _model(config: Experiment) -> tuple[Any, ...]:
    model = config.model
    return model.size, model.vocab_size, model.turns


@functools.cache
def _model_at(model: str, scale: str) -> tuple[Any, ...]:
    files = [f"configs/paper/{model}.gin"]
    if scale != "paper":
        files.append(f"configs/scales/{scale}.gin")
    return _model(load_experiment(files))


def _is_of(row: TaskScore, suite: str, task: str, length: int | None) -> bool:
    """Return whether a score is that of the unchanged model on a task's full validation split."""
    return (
        (row.suite, row.task, row.split) == (suite, f"fire_lm:{task}", "validation")
        and not row.variant
        and length in (None, row.input_length)
    )


def next_step(row: FinetunedRow, done: Sequence[Done], pretrained: bool) -> str:
    """Return the next command for a row in abbreviated form, or "-" if the row has all scores.

    Args:
      row: The row.
      done: The runs that belong to the row.
      pretrained: Whether the model of `row.source` has been pretrained.
    """
    for data_set in row.data_sets:
        wanted = {score for score in row.scores if row.data_set(score[0]) == data_set}
        own = [run for run in done if run.data_set == data_set]
        if any(run.scores >= wanted for run in own):
            continue
        if own:
            return f"evaluate {own[0].run}"
        return f"finetune {data_set}" if pretrained else f"pretrain {row.source}"
    return "-"


def so_far(row: FinetunedRow, done: Sequence[Done]) -> str:
    """Return how many of a row's scores exist at each scale, such as "mini 2 of 7"."""
    scores: dict[str, set[TaskAtLength]] = {}
    for run in done:
        scores.setdefault(run.scale, set()).update(run.scores)
    told = [
        f"{scale} {len(scores[scale])} of {len(row.scores)}" for scale in SCALES if scale in scores
    ]
    return "; ".join(told) or f"0 of {len(row.scores)}"
