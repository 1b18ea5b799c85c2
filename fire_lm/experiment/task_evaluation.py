"""The settings for evaluating a model on a text-to-text task, which gin binds as `evaluate`."""

from __future__ import annotations

import dataclasses

from fire_lm.data import TextToText
from fire_lm.data.task_examples import TaskExamples
from fire_lm.errors import UserError
from fire_lm.evaluation import lengths_refused
from fire_lm.generation import Greedy, Method
from fire_lm.models import Decoder, depends_on_length, keeps_positions
from fire_lm.sharding import MeshShape
from fire_lm.tasks.metrics.answers import no_references


@dataclasses.dataclass(frozen=True)
class TextEvaluation:
    """The task to evaluate, and the settings for answering its examples.

    Attributes:
      data: The task, or a mixture whose tasks are evaluated one by one. Its `target_length` is the
        maximum number of tokens in an answer, including its end token.
      lengths: The maximum lengths of the model's input in tokens, including the end token. The task
        is evaluated at each length.
      suite: The suite under which results are reported.
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

    def __post_init__(self) -> None:
        if not self.lengths:
            raise UserError("EVAL_LENGTHS is empty: set the lengths of inputs in tokens")
        if min(self.lengths) < 2:
            raise UserError(
                f"EVAL_LENGTHS contains {min(self.lengths)}: an input needs at least 2 tokens, one "
                "of text and the end token"
            )
        if self.batch_size < 1 or (self.examples is not None and self.examples < 1):
            raise UserError("evaluate.batch_size and evaluate.examples must be 1 or more")
        if self.tokens_per_batch < 1:
            raise UserError("evaluate.tokens_per_batch must be 1 or more")
        if self.inputs_below is not None and self.inputs_below < 1:
            raise UserError(f"evaluate.inputs_below is {self.inputs_below}: it must be 1 or more")
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

    def measures_loss(self, model: Decoder, length: int) -> bool:
        """Return whether the loss of targets after inputs of up to `length` tokens is measured."""
        return self.loss and not depends_on_length(model, self.context_length(length))

    def refused(self, model: Decoder) -> dict[int, str]:
        """Return the reason for each length at which the model cannot read an input and its answer.

        Raises:
          UserError: The model can read none of the lengths, or cannot rank answers.
        """
        if self.rank and any(encoding.uses_context_length for encoding in model.encodings):
            raise UserError(
                "answers of different lengths cannot be ranked with an encoding that depends on "
                "the length of the input: set evaluate.rank = False"
            )
        contexts = {length: self.context_length(length) for length in self.in_order}
        unread = lengths_refused(model, sorted(contexts.values()))
        found = {n: unread[context] for n, context in contexts.items() if context in unread}
        if len(found) == len(contexts):
            raise UserError(found[min(found)])
        longest = max(context for context in contexts.values() if context not in unread)
        if self.rank and not keeps_positions(model, longest):
            raise UserError(
                "answers of different lengths cannot be ranked at positions that depend on the "
                "length of the input: add --gin_file=configs/resampling/plain.gin, or set "
                "evaluate.rank = False"
            )
        return found

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
