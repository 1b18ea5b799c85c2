"""Examples of a task for evaluation, with the functions that score answers to them, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Example:
    """An input to answer.

    Attributes:
        id: of the example, unique in its split.
        tokens: int32, of the input without an end, shortened to the longest that is asked for.
        input_length: tokens of the whole input.
        answers: the references; what the task calls `answers`, or its target.
        choices: the answers that it allows; empty where they are not told.
        target: what the metrics compare a prediction with.
        fields: of the task's own example, which its functions may ask for.
    """

    id: str
    tokens: np.ndarray
    input_length: int
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    target: Any
    fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class TaskExamples:
    """A split of a task.

    Attributes:
        name: of the task.
        prediction: what the metrics see of the text of an answer, given the example's fields.
        metrics: functions of targets and predictions that give values by name.
    """

    name: str
    examples: Sequence[Example]
    prediction: Callable[[str, Mapping[str, Any]], Any]
    metrics: Sequence[Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]]
