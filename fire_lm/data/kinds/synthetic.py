"""Exercises of synthetic tasks.

Each batch depends only on the seed and the step, so the position in the data is a single number.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from fire_lm.data.base import TrainingSource, not_text_of_task
from fire_lm.data.batches import Batch, CountingIterator
from fire_lm.errors import UserError
from fire_lm.tasks.synthetic import Task
from fire_lm.tasks.synthetic.exercises import training_length, training_rows
from fire_lm.tasks.synthetic.haystack import text_digest
from fire_lm.tasks.synthetic.layouts import Layout, longest_row, row_length, vocabulary_size

_MOST_ROW_LENGTHS = 4  # each needs a compilation of the training step


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
    def both_directions(self) -> bool:  # type: ignore[override]
        return self.layout == "slots"

    @property
    def title(self) -> str:
        return type(self.task).__name__

    @property
    def in_words(self) -> str:
        return f"{self.task.label} up to length {self.max_length}, {self.layout}"

    @property
    def not_text(self) -> str:
        return not_text_of_task(self.title)

    def train_iterator(self, **arguments: int) -> ExerciseIterator:
        return ExerciseIterator(self, **arguments)

    def vocabulary_size(self) -> int:
        return vocabulary_size(self.task)

    def row_lengths(self, length: int) -> tuple[int, ...]:
        """Return the quarters of `length`, rounded up, to which some exercises are padded.

        With several lengths, batches of short exercises take less time.

        Raises:
          UserError: The longest exercise does not fit in `length` tokens.
        """
        longest = longest_row(self.task, self.layout, self.max_length)
        if longest > length:
            raise UserError(
                f"{self.title} up to length {self.max_length} needs {longest} tokens per row: "
                f"set --gin.TRAIN_LENGTH={longest} or more, or reduce Synthetic.max_length"
            )
        parts = range(1, _MOST_ROW_LENGTHS + 1)
        quarters = [-(-length * part // _MOST_ROW_LENGTHS) for part in parts]
        needed = [
            row_length(self.task, self.layout, n)
            for n in range(self.task.shortest, self.max_length + 1)
        ]
        return tuple(sorted({_first_that_fits(quarters, n) for n in needed}))


class ExerciseIterator(CountingIterator):
    """An endless iterator over batches of exercises; see `fire_lm.data`.

    All exercises in a batch have the same length. They are padded to the first of `row_lengths` in
    which they fit.
    """

    of = "a synthetic task"

    def __init__(
        self,
        data: Synthetic,
        *,
        length: int,
        batch_size: int,
        seed: int,
        shard_index: int = 0,
        shard_count: int = 1,
    ):
        self._data, self._seed = data, seed
        self._row_lengths = data.row_lengths(length)
        self._mine = range(shard_index * batch_size, (shard_index + 1) * batch_size)
        text = getattr(data.task, "text", "")
        super().__init__(
            {
                "task": repr(data),
                "length": length,
                "batch": batch_size * shard_count,
                "seed": seed,
                **({"text": text_digest(text)} if text else {}),
            }
        )

    @property
    def description(self) -> str:
        data = self._data
        return (
            f"{data.title}, lengths {data.task.shortest} to {data.max_length}, one length per "
            f"batch, layout {data.layout}"
        )

    def batch(self, number: int) -> Batch:
        data = self._data
        exercises = {"max_length": data.max_length, "seed": self._seed, "step": number}
        needed = row_length(data.task, data.layout, training_length(data.task, **exercises))
        width = _first_that_fits(self._row_lengths, needed)
        rows = training_rows(data.task, data.layout, width=width, rows=self._mine, **exercises)
        return {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}


def _first_that_fits(increasing: Sequence[int], needed: int) -> int:
    return increasing[bisect.bisect_left(increasing, needed)]
