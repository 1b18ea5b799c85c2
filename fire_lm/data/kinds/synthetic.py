"""Exercises of synthetic tasks."""

from __future__ import annotations

import dataclasses

from fire_lm.data.base import TrainingSource, not_text_of_task
from fire_lm.data.batches import TrainIterator
from fire_lm.data.exercises import ExerciseIterator, row_lengths
from fire_lm.tasks.synthetic import Task
from fire_lm.tasks.synthetic.layouts import Layout, vocabulary_size


@dataclasses.dataclass(frozen=True)
class Synthetic(TrainingSource):
    """The exercises of a synthetic task, configured by gin.

    Attributes:
      task: A rule that generates exercises (`fire_lm.tasks.synthetic`).
      max_length: The maximum length of training exercises. The length of each batch is drawn
        uniformly between the task's shortest length and this maximum.
      layout: How the answer is represented. 'slots' reserves slots after the input, which the
        model fills in one pass; 'autoregressive' appends the answer as text, which the model
        generates symbol by symbol.
    """

    task: Task
    max_length: int = 40
    layout: Layout = "slots"
    unshifted = exercises = fixed_batch = any_hosts = True

    def __post_init__(self) -> None:
        self.task.check_length(self.max_length)

    @property
    def both_directions(self) -> bool:
        return self.layout == "slots"

    @property
    def title(self) -> str:
        """The name of the task for use in messages."""
        return type(self.task).__name__

    @property
    def in_words(self) -> str:
        return f"{self.task.label} up to length {self.max_length}, {self.layout}"

    @property
    def not_text(self) -> str:
        return not_text_of_task(self.title)

    def train_iterator(self, **arguments: int) -> TrainIterator:
        return ExerciseIterator(self, **arguments)

    def vocabulary_size(self) -> int:
        return vocabulary_size(self.task)

    def row_lengths(self, length: int) -> tuple[int, ...]:
        """Return several lengths, so that batches of short exercises take less time."""
        return row_lengths(self, length)
