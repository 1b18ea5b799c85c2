"""The evaluation of a model on a task of inputs and targets as a value: gin's `evaluate`."""

from __future__ import annotations

import dataclasses

from fire_lm.data import TextToText
from fire_lm.errors import UserError
from fire_lm.generation import Greedy, Method


@dataclasses.dataclass(frozen=True)
class TextEvaluation:
    """What is answered, and how.

    Attributes:
      data: the task, or a mixture, whose tasks are evaluated one by one; with the tokens of an
        answer, its end included (`target_length`).
      lengths: tokens of an input that the model reads at most, its end included.
      suite: that the task is reported in.
      split: whose examples are answered.
      method: of generation. The first continuation is the answer.
      rank: take the likeliest of the allowed answers instead of generating one.
      choices: the allowed answers; by default those of each example, its feature `choices`.
      examples: answered at most, drawn from the split by a fixed seed; None for all.
      batch_size: prompts that are continued together.

    Raises:
      UserError: a setting that cannot work.
    """

    data: TextToText
    lengths: tuple[int, ...]
    suite: str = ""
    split: str = "validation"
    method: Method = Greedy()
    rank: bool = False
    choices: tuple[str, ...] = ()
    examples: int | None = None
    batch_size: int = 8

    def __post_init__(self) -> None:
        if not self.lengths:
            raise UserError("EVAL_LENGTHS is empty: give lengths of inputs, in tokens")
        if min(self.lengths) < 2:
            raise UserError(
                f"EVAL_LENGTHS has {min(self.lengths)}: an input has 2 tokens or more, one of text "
                "and the end"
            )
        if self.batch_size < 1 or (self.examples is not None and self.examples < 1):
            raise UserError("evaluate.batch_size and evaluate.examples are 1 or more")
        if self.choices and not self.rank:
            raise UserError("evaluate.choices has no effect without evaluate.rank = True")

    @property
    def decoding(self) -> str:
        """The name of the method in results; "rank" alone ranks the examples' own choices."""
        return "-".join(["rank", *self.choices]) if self.rank else self.method.label

    def context_length(self, length: int) -> int:
        """Tokens of the first one, the input and the answer together."""
        return 1 + length + self.data.target_length
