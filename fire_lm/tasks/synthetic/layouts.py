"""Layouts, which define how an exercise becomes a row of token ids and targets.

Symbol s has id s + 2. Id 0 is padding and marks the beginning of a row. Id 1 is a slot for an
answer symbol (`slots`), or the separator between input and answer (`autoregressive`). For an input
x of n symbols and its answer y of m symbols, the rows are:

    slots            inputs   x_1 .. x_n  1   ..  1          n + m ids
                     targets   0  ..  0  y_1  ..  y_m
    autoregressive   inputs    0  x_1 .. x_n   1  y_1 .. y_m-1     n + m + 1 ids
                     targets  x_1  .. x_n  1  y_1  ..   y_m

Weights are 1 at the m targets of the answer and 0 elsewhere. If an exercise has queries, each of
which requests one answer symbol, the queries replace the ids 1. The second layout is that of a
language model: the inputs are the targets shifted by one position, and an answer consists of the m
tokens after a prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.task import Sample, Task

Layout = Literal["slots", "autoregressive"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

PADDING, SLOT, FIRST_SYMBOL = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Rows:
    """Exercises as arrays of B rows, padded on the right to a width of T ids.

    Attributes:
      inputs: The ids that the model reads, int32 [B, T].
      targets: The ids that the model should predict at each position, int32 [B, T].
      weights: The weight of each target in the loss, int8 [B, T]: 1 for the answer, else 0.
      tokens: The number of ids in each row without padding, int32 [B, 1].
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    tokens: np.ndarray


def vocabulary_size(task: Task) -> int:
    """Return the number of distinct ids that can occur in rows of the task."""
    return FIRST_SYMBOL + max(task.input_symbols, task.answer_symbols)


def row_length(task: Task, layout: Layout, length: int) -> int:
    """Return the number of ids in a row with one exercise of this length."""
    begins = int(layout == "autoregressive")
    return begins + task.input_length(length) + task.answer_length(length)


def longest_row(task: Task, layout: Layout, max_length: int) -> int:
    """Return the number of ids in the longest row for lengths up to `max_length`.

    This is the smallest width that training rows can have.
    """
    task.check_length(max_length)
    return max(row_length(task, layout, n) for n in range(task.shortest, max_length + 1))


def lay_out(task: Task, layout: Layout, samples: Sequence[Sample], width: int) -> Rows:
    """Return a row of `width` ids for each of these exercises.

    Raises:
      UserError: An exercise does not fit in a row, or the layout does not support its queries.
    """
    shape = (len(samples), width)
    inputs, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    weights, tokens = np.zeros(shape, np.int8), np.zeros((len(samples), 1), np.int32)
    for row, sample in enumerate(samples):
        ids = prompt(layout, sample)
        answer = sample.answer + FIRST_SYMBOL
        end = len(ids) if layout == "slots" else len(ids) + len(answer) - 1
        at = end - len(answer)
        if end > width:
            raise UserError(
                f"{type(task).__name__}: an exercise needs {end} tokens, but the row length is "
                f"{width}\n"
                f"set TRAIN_LENGTH to {end} or more, or use shorter exercises (max_length)"
            )
        inputs[row, : len(ids)] = ids
        if layout == "autoregressive":
            inputs[row, len(ids) : end] = answer[:-1]
            targets[row, : end - 1] = inputs[row, 1:end]
        targets[row, at:end] = answer
        weights[row, at:end] = 1
        tokens[row] = end
    return Rows(inputs, targets, weights, tokens)


def prompt(layout: Layout, sample: Sample) -> np.ndarray:
    """Return the ids that a model receives in order to answer this exercise, int [P].

    With `slots`, these are all ids of the row. With `autoregressive`, they are the ids before the
    answer, including the 0 at the beginning.

    Raises:
      UserError: The layout is `autoregressive` and there are several queries.
    """
    symbols = sample.inputs + FIRST_SYMBOL
    queries = None if sample.queries is None else sample.queries + FIRST_SYMBOL
    if layout == "slots":
        end = np.full(len(sample.answer), SLOT) if queries is None else queries
        return np.concatenate([symbols, end])
    if queries is not None and len(queries) > 1:
        raise UserError(
            "the layout 'autoregressive' does not support exercises with several queries: use the "
            "layout 'slots', or one query"
        )
    return np.concatenate([[PADDING], symbols, [SLOT] if queries is None else queries])


def answers(task: Task, layout: Layout, predicted: np.ndarray, length: int) -> np.ndarray:
    """Return the symbols of a model's answers to exercises of one length, int [B, m].

    An id that is not a symbol becomes a negative number, which no answer contains.

    Args:
      predicted: In the layout `slots`, the ids that the model predicts at each position, int
        [B, T]; otherwise, the ids that it generates after the prompts, int [B, m or more].
    """
    first = task.input_length(length) if layout == "slots" else 0
    return predicted[:, first : first + task.answer_length(length)] - FIRST_SYMBOL
