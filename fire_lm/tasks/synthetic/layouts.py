"""Layouts: how an exercise becomes a row of token ids with its targets.

Symbol s has id s + 2. Id 0 is padding and the beginning of a row; id 1 is a slot of the answer
(`slots`), or the separator of input and answer (`autoregressive`). With x an input of n symbols
and y its answer of m symbols:

    slots            inputs   x_1 .. x_n  1   ..  1          n + m ids
                     targets   0  ..  0  y_1  ..  y_m
    autoregressive   inputs    0  x_1 .. x_n   1  y_1 .. y_m-1     n + m + 1 ids
                     targets  x_1  .. x_n  1  y_1  ..   y_m

Weights are 1 at the m targets of the answer. If a task asks for its answer symbols one by one, its
queries take the place of the 1. The second layout is that of a language model: the input is the
targets shifted by one, and an answer is m tokens that follow a prompt.
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
    """Exercises as arrays; T is the width of a row, which is padded on the right.

    Attributes:
        inputs: What the model reads, int32 [B, T].
        targets: What it should predict at each position, int32 [B, T].
        weights: The weight of each target in the loss, int8 [B, T]: 1 for the answer, else 0.
        tokens: The number of ids of each row without its padding, int32 [B, 1].
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    tokens: np.ndarray


def vocabulary_size(task: Task) -> int:
    """Return the number of ids that rows of the task can contain."""
    return FIRST_SYMBOL + max(task.input_symbols, task.answer_symbols)


def row_length(task: Task, layout: Layout, length: int) -> int:
    """Return the number of ids in a row with one exercise of this length."""
    begins = int(layout == "autoregressive")
    return begins + task.input_length(length) + task.answer_length(length)


def longest_row(task: Task, layout: Layout, max_length: int) -> int:
    """Return the ids of the longest row up to `max_length`: the least width for training."""
    task.check_length(max_length)
    return max(row_length(task, layout, n) for n in range(task.shortest, max_length + 1))


def padded_length(ids: int) -> int:
    """Return the next of 16, 24, 32, 48, 64, 96, ...: few widths, at most half of it padding."""
    power = 16
    while power < ids:
        if ids <= power + power // 2:
            return power + power // 2
        power *= 2
    return power


def lay_out(task: Task, layout: Layout, samples: Sequence[Sample], width: int) -> Rows:
    """Return the rows of these exercises, `width` ids wide.

    Raises:
        UserError: A row is longer, or the layout cannot hold the task's queries.
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
                f"use rows of {end} or more (TRAIN_LENGTH), or shorter exercises (max_length)"
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
    """Return what a model receives to answer this exercise, int [P].

    With `slots`, it is the whole row, which one forward pass answers; with `autoregressive`, it is
    everything before the answer, including the 0 at the beginning.

    Raises:
        UserError: The layout is `autoregressive`, and there are several queries.
    """
    symbols = sample.inputs + FIRST_SYMBOL
    queries = None if sample.queries is None else sample.queries + FIRST_SYMBOL
    if layout == "slots":
        asked = np.full(len(sample.answer), SLOT) if queries is None else queries
        return np.concatenate([symbols, asked])
    if queries is not None and len(queries) > 1:
        raise UserError(
            "this task asks several things at once, each answered at its own position: use the "
            "layout 'slots', or one query"
        )
    return np.concatenate([[PADDING], symbols, [SLOT] if queries is None else queries])


def answers(task: Task, layout: Layout, predicted: np.ndarray, length: int) -> np.ndarray:
    """Return the symbols of a model's answers to exercises of one length, int [B, m].

    Args:
        predicted: In the layout `slots`, the id that it predicts at each position, int [B, T];
            otherwise, the ids that it generated after the prompts, int [B, m or more].

    An id that is not a symbol becomes a negative number, which no answer contains.
    """
    first = task.input_length(length) if layout == "slots" else 0
    return predicted[:, first : first + task.answer_length(length)] - FIRST_SYMBOL
