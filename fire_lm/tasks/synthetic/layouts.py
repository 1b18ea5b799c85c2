"""Layouts: how an exercise becomes a row of token ids with its targets.

Symbol s is id s + 2. Id 0 is padding, and the beginning of a row; id 1 is a slot of the answer
(`slots`), or what stands between input and answer (`autoregressive`). With x an input of n symbols
and y its answer of m:

    slots            inputs   x_1 .. x_n  1   ..  1          n + m ids
                     targets   0  ..  0  y_1  ..  y_m
    autoregressive   inputs    0  x_1 .. x_n   1  y_1 .. y_m-1     n + m + 1 ids
                     targets  x_1  .. x_n  1  y_1  ..   y_m

Weights are 1 at the m targets of the answer. A task whose answer symbols are asked for one by one
has its queries in the place of the 1. The second layout is that of a language model: what is read
is the targets shifted by one, and an answer is m tokens that follow a prompt.
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
    """Exercises as arrays; T is the width of a row, which padding fills to the right.

    Attributes:
        inputs: int32 [B, T], what the model reads.
        targets: int32 [B, T], what it is to say at each place.
        weights: int8 [B, T], what each target counts in the loss: 1 for the answer, else 0.
        tokens: int32 [B, 1], ids of each row without its padding.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    tokens: np.ndarray


def vocabulary_size(task: Task) -> int:
    """Ids that rows of the task are made of."""
    return FIRST_SYMBOL + max(task.input_symbols, task.answer_symbols)


def row_length(task: Task, layout: Layout, length: int) -> int:
    """Ids of a row of one exercise of this length."""
    begins = int(layout == "autoregressive")
    return begins + task.input_length(length) + task.answer_length(length)


def longest_row(task: Task, layout: Layout, max_length: int) -> int:
    """Ids of the longest row of all lengths up to `max_length`: the least width for training."""
    task.check_length(max_length)
    return max(row_length(task, layout, n) for n in range(task.shortest, max_length + 1))


def padded_length(ids: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, ...: few widths, at most half of a row padding."""
    power = 16
    while power < ids:
        if ids <= power + power // 2:
            return power + power // 2
        power *= 2
    return power


def lay_out(task: Task, layout: Layout, samples: Sequence[Sample], width: int) -> Rows:
    """The rows of these exercises, `width` ids wide.

    Raises:
        UserError: a row is longer, or the layout cannot hold the task's queries.
    """
    shape = (len(samples), width)
    inputs, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    weights, tokens = np.zeros(shape, np.int8), np.zeros((len(samples), 1), np.int32)
    for row, sample in enumerate(samples):
        asked = prompt(layout, sample)
        answer = sample.answer + FIRST_SYMBOL
        end = len(asked) if layout == "slots" else len(asked) + len(answer) - 1
        at = end - len(answer)
        if end > width:
            raise UserError(
                f"{type(task).__name__}: an exercise takes {end} tokens, a row has {width}\n"
                f"give rows of {end} or more (TRAIN_LENGTH), or shorter exercises (max_length)"
            )
        inputs[row, : len(asked)] = asked
        if layout == "autoregressive":
            inputs[row, len(asked) : end] = answer[:-1]
            targets[row, : end - 1] = inputs[row, 1:end]
        targets[row, at:end] = answer
        weights[row, at:end] = 1
        tokens[row] = end
    return Rows(inputs, targets, weights, tokens)


def prompt(layout: Layout, sample: Sample) -> np.ndarray:
    """int [P]: what a model is given to answer this exercise.

    With `slots` that is the whole row, which one forward pass answers; with `autoregressive` it is
    what stands before the answer, the 0 of the beginning included.

    Raises:
        UserError: several queries, which are answered one by one, in the layout `autoregressive`.
    """
    symbols = sample.inputs + FIRST_SYMBOL
    queries = None if sample.queries is None else sample.queries + FIRST_SYMBOL
    if layout == "slots":
        asked = np.full(len(sample.answer), SLOT) if queries is None else queries
        return np.concatenate([symbols, asked])
    if queries is not None and len(queries) > 1:
        raise UserError(
            "this task asks several things at once, each answered at its own place: use the "
            "layout 'slots', or one query"
        )
    return np.concatenate([[PADDING], symbols, [SLOT] if queries is None else queries])


def answers(task: Task, layout: Layout, predicted: np.ndarray, length: int) -> np.ndarray:
    """int [B, m]: the symbols that a model answers exercises of one length with.

    Args:
        predicted: int [B, T], the id that it says at each place of rows in the layout `slots`; or
            int [B, m or more], the ids that it generated after the prompts.

    An id that is no symbol becomes a negative one, which no answer has.
    """
    first = task.input_length(length) if layout == "slots" else 0
    return predicted[:, first : first + task.answer_length(length)] - FIRST_SYMBOL
