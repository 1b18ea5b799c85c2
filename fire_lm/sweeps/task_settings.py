"""The settings of `fire-lm evaluate` for downstream tasks, and the cells of each evaluation.

A cell is the evaluation of a checkpoint on one task at one input length.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from etils import epath

from fire_lm.data import TextToText
from fire_lm.data.task_examples import TaskExamples
from fire_lm.errors import UserError
from fire_lm.experiment.task_evaluation import TextEvaluation
from fire_lm.models import Decoder
from fire_lm.processes import say_once
from fire_lm.results import TaskScore, read_table
from fire_lm.results.task_rows import FILE
from fire_lm.runs.predictions import predictions_file, read_predictions
from fire_lm.runs.saved import check_same_vocabulary
from fire_lm.sweeps.settings import Setting
from fire_lm.tasks.metrics import Score

# The settings of `TextToText` that determine the examples and the model's inputs.
_READING = (
    *("name", "target_length", "vocabulary", "data_dir", "truncation", "use_cached", "cache_dirs"),
    *("file", "validation_share"),  # of `Pairs`
)
# The metric with the loss of targets, in nats per token.
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class TaskSetting(Setting):
    """A way of evaluating a run's checkpoints on downstream tasks.

    Attributes:
      lengths: The input lengths that replace those of the configuration, if any.
    """

    lengths: tuple[int, ...] = ()

    @functools.cached_property
    def asked(self) -> TextEvaluation:
        """The evaluation that the configuration and `lengths` describe."""
        value: TextEvaluation = self.config.task
        return dataclasses.replace(value, lengths=self.lengths) if self.lengths else value

    @functools.cached_property
    def model(self) -> Decoder:
        model: Decoder = self.config.model
        return model

    @property
    def train_length(self) -> int:
        """The length of the rows on which the run was trained."""
        return self.config.train.train_length

    @functools.cached_property
    def taken(self) -> list[int]:
        """The lengths at which the model can read an input and its answer."""
        refused = self.asked.refused(self.model)
        return [length for length in self.asked.in_order if length not in refused]

    @functools.cached_property
    def tasks(self) -> list[TaskExamples]:
        """The tasks, each with the examples to answer."""
        tasks = _examples(self.asked.data, self.asked.split, max(self.taken) - 1)
        return [selected(task, self.asked) for task in tasks]

    @property
    def rows(self) -> dict[str, Any]:
        asked = self.asked
        return {
            "variant": self.variant,
            "data": {name: getattr(asked.data, name, None) for name in _READING},
            "lengths": asked.in_order,
            **{
                name: getattr(asked, name)
                for name in ("suite", "split", "inputs_below", "decoding", "examples")
            },
        }

    def check(self, workdir: epath.Path) -> None:
        """Check the vocabulary, the lengths and the tasks; report lengths that are skipped.

        Raises:
          UserError: The vocabulary differs from the run's, or the model can read none of the
            lengths or cannot answer a task.
        """
        check_same_vocabulary(self.asked.data, workdir)
        try:
            refused = self.asked.refused(self.model)
        except UserError as error:
            raise UserError(f"{workdir}: {error}") from None
        for length, why in refused.items():
            context, first = self.asked.context_length(length), why.partition("\n")[0]
            say_once(f"{workdir} is not evaluated at {context} tokens: {first}")
        for task in self.tasks:
            self.asked.check_task(task, self.model)

    def check_apart(self, other: Self) -> None:
        """Raise UserError if the two settings answer different examples under the same name."""
        ours, theirs = self.rows, other.rows
        place = ("vocabulary", "data_dir", "use_cached", "cache_dirs", "file", "validation_share")
        named = [
            {**rows, "lengths": (), "data": {**rows["data"], **dict.fromkeys(place)}}
            for rows in (ours, theirs)
        ]
        if named[0] == named[1] and ours["data"] != theirs["data"]:
            raise UserError(
                f"--also='{self.also}' answers other examples that are also called "
                f"{self.asked.data.title}: the rows could not be distinguished\n"
                "set another name with --gin.evaluate.suite=NAME, or evaluate these examples in a "
                "separate command"
            )


@functools.lru_cache(maxsize=4)
def _examples(data: TextToText, split: str, longest: int) -> list[TaskExamples]:
    """Return the examples of each task, cached for all checkpoints and settings."""
    return data.task_examples(split=split, longest=longest)


def selected(task: TaskExamples, asked: TextEvaluation) -> TaskExamples:
    """Return the task with only the examples to answer.

    If inputs are excluded because of their length, their number is reported.
    """
    if asked.inputs_below is not None:
        total = len(task.examples)
        task = task.with_inputs_below(asked.inputs_below)
        count = len(task.examples)
        say_once(
            f"{count} of {total} inputs of {task.name} have fewer than {asked.inputs_below:,} "
            f"tokens and are selected; {total - count} are excluded"
        )
    return drawn(task, asked.examples)


def drawn(task: TaskExamples, count: int | None) -> TaskExamples:
    """Return the task with `count` examples, drawn with a fixed seed, in their original order.

    Groups of examples that are scored together are drawn as a whole until there are at least
    `count` examples. If `count` is None or at least the number of examples, all are kept.
    """
    if count is None or count >= len(task.examples):
        return task
    sizes = collections.Counter(example.group for example in task.examples)
    groups, picked, found = list(sizes), set[str](), 0
    for index in np.random.default_rng(0).permutation(len(groups)):
        if found >= count:
            break
        picked.add(groups[index])
        found += sizes[groups[index]]
    kept = [example for example in task.examples if example.group in picked]
    return dataclasses.replace(task, examples=kept)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The evaluation of a checkpoint on one task at one input length."""

    workdir: epath.Path
    step: int
    setting: TaskSetting
    task: TaskExamples
    length: int

    def row(self, metric: str, score: Score) -> TaskScore:
        asked = self.setting.asked
        return TaskScore(
            run=self.workdir.name,
            encoding=self.setting.config.label,
            variant=self.setting.variant,
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

    def rows_in(self, rows: Sequence[TaskScore]) -> list[TaskScore]:
        """Return the rows of this cell in the run's table."""
        key = self.row("", Score(0, 0, 0, 0, 0)).key[1:-1]  # without the run name and the metric
        return [row for row in rows if row.key[1:-1] == key]

    def is_finished(self) -> bool:
        """Return whether the run's table contains the rows of this cell.

        Raises:
          UserError: The existing predictions belong to different examples.
        """
        metrics = {row.metric for row in self.rows_in(read_table(self.workdir / FILE, TaskScore))}
        finished = bool(metrics) and (LOSS in metrics or not self.measures_loss)
        if finished and self.file.exists():
            read_predictions(self.file, self.task.examples)
        return finished

    @property
    def measures_loss(self) -> bool:
        """Whether this cell has a row with the loss of the targets."""
        return self.setting.asked.measures_loss(self.setting.model, self.length)

    @property
    def split(self) -> str:
        """The name of the split, followed by the criteria that select its examples."""
        asked = self.setting.asked
        parts = [asked.split]
        if asked.inputs_below is not None:
            parts.append(f"inputs below {asked.inputs_below}")
        if asked.examples:
            # Reports combine the tasks of a model by this text, so it must not depend on the task.
            parts.append(f"{asked.examples} drawn")
        return ", ".join(parts)

    @property
    def file(self) -> epath.Path:
        asked = self.setting.asked
        parts = (self.task.name, self.split, self.setting.variant, self.step, self.length)
        how = (asked.data.target_length, asked.data.truncation, asked.decoding)
        return predictions_file(self.workdir, *parts, *how)

    @property
    def claim(self) -> str:
        """The name under which a process claims this cell."""
        return f"tasks-{self.file.stem}"


def cells(setting: TaskSetting, workdir: epath.Path, step: int) -> list[Cell]:
    """Return the cells of a checkpoint, task by task in ascending order of length."""
    return [
        Cell(workdir, step, setting, task, length)
        for task in setting.tasks
        for length in setting.taken
    ]
