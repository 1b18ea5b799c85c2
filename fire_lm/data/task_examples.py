"""The examples of a task for evaluation, and the functions that score answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fire_lm.errors import UserError


def failure(error: Exception) -> str:
    """Return a one-line description of an exception that a task's own code raised."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


@dataclasses.dataclass(frozen=True)
class Example:
    """An input that a model answers, with its reference answers.

    Attributes:
      id: The id of the example, which is unique in its split.
      tokens: The tokens of the input, int32, without an end token, truncated to the maximum
        length that was requested.
      input_length: The number of tokens in the complete input.
      answers: The reference answers: the example's feature `answers`, or else its target.
      choices: The allowed answers, or an empty tuple if the example does not list any.
      target: The value with which the metrics compare a prediction.
      fields: The features of the task's own example that the task's functions may need.
    """

    id: str
    tokens: np.ndarray
    input_length: int
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    target: Any
    fields: Mapping[str, Any]

    @property
    def group(self) -> str:
        """The name of the examples with which the metrics score this one; by default, its id."""
        return str(self.fields.get("group", self.id))


@dataclasses.dataclass(frozen=True)
class TaskExamples:
    """The examples in one split of a task, with the functions that score answers.

    Attributes:
      name: The name of the task.
      examples: The examples in the order of the source.
      prediction: A function that maps the text of an answer and the example's fields to the
        prediction that the metrics receive.
      metrics: Functions that map the targets and the predictions to named values, which are
        numbers or, as in seqio, objects such as `seqio.metrics.Scalar`.
      lost: The errors of examples that are omitted because the task's own code fails on their
        targets, keyed by the ids of the examples.
    """

    name: str
    examples: Sequence[Example]
    prediction: Callable[[str, Mapping[str, Any]], Any]
    metrics: Sequence[Callable[[Sequence[Any], Sequence[Any]], Mapping[str, Any]]]
    lost: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def with_inputs_below(self, tokens: int) -> TaskExamples:
        """Return the task with only the examples whose inputs have fewer than `tokens` tokens.

        The inputs are measured before truncation. A group of examples that are scored together is
        kept only if all of its inputs are that short.

        Raises:
          UserError: There is no such example.
        """
        longest: dict[str, int] = {}
        for example in self.examples:
            longest[example.group] = max(longest.get(example.group, 0), example.input_length)
        kept = [example for example in self.examples if longest[example.group] < tokens]
        if not kept:
            raise UserError(
                f"no input of {self.name} has fewer than {tokens:,} tokens (the shortest has "
                f"{min(longest.values()):,}): raise evaluate.inputs_below"
            )
        return dataclasses.replace(self, examples=kept)
