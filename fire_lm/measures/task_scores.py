"""The scores of a model on downstream tasks, whose answers it generates or ranks.

A cell is the evaluation of a checkpoint on one task at one input length. Its predictions are
written as they are computed, and its rows once all examples have been answered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import jax
from jax.sharding import Mesh

from fire_lm.console import Progress
from fire_lm.data import TextToText
from fire_lm.data.task_examples import TaskExamples
from fire_lm.errors import UserError
from fire_lm.generation import Greedy, Method
from fire_lm.generation.result_lines import appended_lines
from fire_lm.measures.answers import Answerer, generated, input_digest
from fire_lm.measures.base import Cell, Measure, RunModel, StillOurs, check_least
from fire_lm.measures.prediction_scores import prediction_scores
from fire_lm.measures.predictions import Prediction, predictions_file, read_predictions
from fire_lm.measures.ranking import ranked, target_loss
from fire_lm.measures.readable_lengths import readable_lengths
from fire_lm.measures.selected_examples import examples_of, selected
from fire_lm.models import Decoder, depends_on_length, keeps_positions
from fire_lm.processes import by_first, say
from fire_lm.results import TaskScore
from fire_lm.results.task_rows import FILE
from fire_lm.sharding import MeshShape, decoding_layout
from fire_lm.tasks.metrics import Score
from fire_lm.tasks.metrics.answers import no_references
from fire_lm.tasks.suites import SUITES

# The settings of `TextToText` that determine the examples and the model's inputs.
_READING = (
    *("name", "target_length", "vocabulary", "data_dir", "truncation", "use_cached", "cache_dirs"),
    *("file", "validation_share"),  # of `Pairs`
)
# The metric with the loss of targets, in nats per token.
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class TextEvaluation(Measure):
    """The scores of a model on downstream tasks (`evaluate` in gin).

    Attributes:
      data: The task, or a mixture whose tasks are evaluated one by one. Its `target_length` is the
        maximum number of tokens in an answer, including its end token.
      lengths: The maximum lengths of the model's input in tokens, including the end token. The task
        is evaluated at each length.
      suite: The suite under which results are reported. A name that is not one of fire_lm's own
        is also part of the names of the files of predictions.
      split: The split whose examples are answered.
      method: The method of generation. The first continuation is the answer.
      rank: Whether to choose the most likely of the allowed answers instead of generating one.
      loss: Whether to measure the loss of the targets as well, in nats per token. It is not
        measured with encodings or positions that depend on the length of the input.
      choices: The allowed answers. By default, the feature `choices` of each example lists them.
      inputs_below: Only examples whose complete input has fewer tokens than this, without its end
        token, are answered. None selects all examples.
      examples: The number of examples to answer, which are drawn with a fixed seed from the
        selected examples. None answers all selected examples. Both settings keep or omit examples
        that are scored together, such as the answers to a question of MultiRC, as a whole.
      batch_size: The number of prompts that are continued together.
      tokens_per_batch: The maximum number of tokens in a forward pass that ranks answers, which
        limits its memory. A forward pass reads at least one answer per device.
      mesh: The device mesh to use; by default, all devices are used.

    Raises:
      UserError: A setting is invalid.
    """

    data: TextToText
    lengths: tuple[int, ...]
    suite: str = ""
    split: str = "validation"
    method: Method = Greedy()
    rank: bool = False
    loss: bool = False
    choices: tuple[str, ...] = ()
    inputs_below: int | None = None
    examples: int | None = None
    batch_size: int = 8
    tokens_per_batch: int = 2**14
    mesh: MeshShape = MeshShape()

    name = "task_scores"
    table = FILE
    Row = TaskScore

    def __post_init__(self) -> None:
        if not self.lengths:
            raise UserError("EVAL_LENGTHS is empty: set the lengths of inputs in tokens")
        if min(self.lengths) < 2:
            raise UserError(
                f"EVAL_LENGTHS contains {min(self.lengths)}: an input needs at least 2 tokens, one "
                "of text and the end token"
            )
        check_least(
            "evaluate",
            1,
            batch_size=self.batch_size,
            examples=self.examples,
            tokens_per_batch=self.tokens_per_batch,
            inputs_below=self.inputs_below,
        )
        if self.choices and not self.rank:
            raise UserError(
                "evaluate.choices has no effect without evaluate.rank: set evaluate.rank = True"
            )

    @property
    def in_order(self) -> tuple[int, ...]:
        """The distinct lengths in ascending order."""
        return tuple(sorted(set(self.lengths)))

    @property
    def decoding(self) -> str:
        """The name of the method in results, such as "greedy", "rank" or "rank-yes-no"."""
        return "-".join(["rank", *self.choices]) if self.rank else self.method.label

    def context_length(self, length: int) -> int:
        """Return the total length of token 0, an input of `length` tokens, and the answer."""
        return 1 + length + self.data.target_length

    def readable_lengths(self, model: Decoder, run: str) -> tuple[int, ...]:
        """Return the lengths at which the model can read an input and its answer.

        The other lengths are reported. In messages, `run` is the name of the run.

        Raises:
          UserError: The model can read none of the lengths, or cannot rank answers.
        """
        if self.rank and any(encoding.uses_context_length for encoding in model.encodings):
            raise UserError(
                f"{run}: answers of different lengths cannot be ranked with an encoding that "
                "depends on the length of the input: set evaluate.rank = False"
            )
        contexts = {length: self.context_length(length) for length in self.in_order}
        readable = readable_lengths(model, contexts, run)
        if self.rank and not keeps_positions(model, contexts[readable[-1]]):
            raise UserError(
                f"{run}: answers of different lengths cannot be ranked at positions that depend on "
                "the length of the input: add --gin_file=configs/resampling/plain.gin, or set "
                "evaluate.rank = False"
            )
        return readable

    def check_task(self, task: TaskExamples, model: Decoder) -> None:
        """Check that the model can answer the examples and that the answers can be scored.

        Raises:
          UserError: An example has unknown tokens or lacks the answers to be ranked, or an example
            of a suite has no reference answers. (A user's metrics may not need them.)
        """
        for example in task.examples:
            if example.tokens.size and (largest := int(example.tokens.max())) >= model.vocab_size:
                raise UserError(
                    f"the example {example.id} of {task.name} has the token {largest}, but the "
                    f"model's vocabulary has only {model.vocab_size} ids: use the vocabulary of "
                    "the run"
                )
            if self.rank and not (self.choices or example.choices):
                raise UserError(
                    f"the example {example.id} of {task.name} does not list the allowed answers: "
                    "set evaluate.choices = ('A', 'B'), or evaluate.rank = False"
                )
            if self.data.is_ours and not len(example.fields["answers"]):
                raise no_references(f"examples of {task.name} in the split {self.split!r}")

    def layout(self, params: Any, mesh: Mesh) -> Any:
        return decoding_layout(params, mesh)

    def identity(self, run_model: RunModel) -> dict[str, Any]:
        names = ("suite", "split", "inputs_below", "decoding", "examples", "loss")
        return {
            "data": {name: getattr(self.data, name, None) for name in _READING},
            "lengths": self.in_order,
            **{name: getattr(self, name) for name in names},
        }

    def recorded(self) -> dict[str, str]:
        return {}  # the keys of the rows contain all settings

    def check(self, run_model: RunModel) -> None:
        """Check the lengths and the tasks, and report lengths that are skipped.

        Raises:
          UserError: The model can read none of the lengths or cannot answer a task.
        """
        for task in self.tasks(run_model):
            self.check_task(task, run_model.model)

    def clash(self, run_model: RunModel, other: Self) -> str:
        """Say whether the two settings answer different examples under the same name."""
        ours, theirs = self.identity(run_model), other.identity(run_model)
        place = ("vocabulary", "data_dir", "use_cached", "cache_dirs", "file", "validation_share")
        named = [
            {**rows, "lengths": (), "loss": None, "data": {**rows["data"], **dict.fromkeys(place)}}
            for rows in (ours, theirs)
        ]
        if named[0] != named[1] or ours["data"] == theirs["data"]:
            return ""
        return (
            f"answers other examples that are also called {self.data.title}: the rows could not be "
            "distinguished\nset another name with --gin.evaluate.suite=NAME"
        )

    def tasks(self, run_model: RunModel) -> list[TaskExamples]:
        """Return the tasks, each with the examples to answer."""
        longest = self._lengths(run_model)[-1]
        tasks = examples_of(self.data, self.split, longest - 1)
        return [selected(task, self.inputs_below, self.examples) for task in tasks]

    def _lengths(self, run_model: RunModel) -> tuple[int, ...]:
        return self.readable_lengths(run_model.model, str(run_model.workdir))

    def plan(self, run_model: RunModel, step: int) -> list[Cell]:
        """Return the cells of a checkpoint, task by task in ascending order of length.

        Their work is the task and the file of predictions, whose name their claims contain.
        """
        split, cells = self.split_name, []
        # In names of files, "plain" is the model as it was trained, unlike the variant of this name
        # of a model that was trained at random positions.
        variant = "variant-plain" if run_model.variant == "plain" else run_model.variant
        how = (self.data.target_length, self.data.truncation, self.decoding)
        named = (self.suite,) if self.suite not in ("", *SUITES) else ()
        for task in self.tasks(run_model):
            for length in self._lengths(run_model):
                parts = (task.name, split, variant, step, length, *how, *named)
                file = predictions_file(run_model.workdir, *parts)
                key = (self.suite, task.name, split, length, *how, self.context_length(length))
                cells.append(Cell(run_model, step, key, f"tasks-{file.stem}", (task, file)))
        return cells

    @property
    def split_name(self) -> str:
        """The name of the split, followed by the criteria that select its examples."""
        parts = [self.split]
        if self.inputs_below is not None:
            parts.append(f"inputs below {self.inputs_below}")
        if self.examples:
            # Reports combine the tasks of a model by this text, so it must not depend on the task.
            parts.append(f"{self.examples} drawn")
        return ", ".join(parts)

    def is_finished(self, cell: Cell) -> bool:
        """Return whether the run's table contains the rows of this cell.

        Raises:
          UserError: The existing predictions belong to different examples.
        """
        _, file = cell.work
        metrics = {row.metric for row in self.rows_of(cell)}
        finished = bool(metrics) and (LOSS in metrics or not self._measures_loss(cell))
        if finished and file.exists():
            self._predictions(cell)
        return finished

    def _predictions(self, cell: Cell) -> dict[str, Prediction]:
        """Return the predictions in the cell's file; see `read_predictions`."""
        (task, file), length = cell.work, cell.key[3]
        digest = functools.partial(input_digest, self, length=length)
        return read_predictions(file, task.examples, digest)

    def _measures_loss(self, cell: Cell) -> bool:
        context_length = cell.key[-1]
        return self.loss and not depends_on_length(cell.run_model.model, context_length)

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[Score | None]:
        """Append the missing predictions to the cell's file, batch by batch.

        Yields:
          The loss of the targets, or None if it is not measured.
        """
        (task, file), length = cell.work, cell.key[3]
        answered = set(by_first(lambda: list(self._predictions(cell))))
        unanswered = [example for example in task.examples if example.id not in answered]
        if answered:
            say(f"{file} already contains {len(answered)} of {len(task.examples)} predictions")
        measures_loss = self._measures_loss(cell)
        if not (unanswered or measures_loss):
            yield None
            return
        answerer = Answerer(self, cell.run_model, params(), mesh, length)
        answer = ranked if self.rank else generated
        progress, done = Progress(len(unanswered), quiet=jax.process_index() != 0), 0
        with contextlib.closing(progress), appended_lines(file) as append:
            for batch in answer(answerer, unanswered):
                done += len(batch)
                progress.show(done, f"{task.name} at {length}")
                for prediction in batch:
                    append(prediction.line())
        yield target_loss(answerer, task.examples) if measures_loss else None

    def write(self, cell: Cell, results: Sequence[Score | None], still_ours: StillOurs) -> None:
        """Score the predictions of a cell and add its rows, with the loss, to the table."""
        (task, _), length = cell.work, cell.key[3]
        predictions = self._predictions(cell)
        cut = sum(predictions[example.id].truncated for example in task.examples)
        if cut:
            say(
                f"{cut} of {len(predictions)} inputs of {task.name} have more than {length} tokens "
                f"and were truncated ({self.data.truncation})"
            )
        scores = prediction_scores(task, {key: p.prediction for key, p in predictions.items()})
        intervals = [
            f"{name} {score.low:.2f} to {score.high:.2f}"
            for name, score in scores.items()
            if not math.isnan(score.low)
        ]
        if intervals:
            say(f"{task.name} at {length}, 95 % intervals: {', '.join(intervals)}")
        (loss,) = results
        if loss is not None:  # after the metrics: checkpoints are ranked by the first of them
            scores[LOSS] = loss
        rows = [
            self.row(cell, metric, score.examples, score.value, score.stderr)
            for metric, score in scores.items()
        ]
        super().write(cell, rows, still_ours)

    def steps(self, run_model: RunModel) -> set[int]:
        """Return the steps for which a cell of this measure has rows."""
        steps = super().steps(run_model)
        return {s for s in steps if any(map(self.rows_of, self.plan(run_model, s)))}

    def row_text(self, row: TaskScore) -> str:
        return (
            f"{row.task} ({row.split}) at {row.input_length}: {row.metric} {row.value:.2f} "
            f"± {row.stderr:.2f}, {row.examples} examples, {row.decoding}"
            + f", {row.variant}"
            * bool(row.variant)
        )
