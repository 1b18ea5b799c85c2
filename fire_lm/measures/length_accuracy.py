"""Accuracy on a synthetic task as a function of length, and answers in the layout `slots`.

Exercises in this layout are answered in a single forward pass. Rows are padded to one of a few
widths, so that few programs are compiled. The padding is a separate segment that no token attends
to, so the accuracy at a length depends neither on the width nor on the batch. If an encoding uses
the length of the complete input, rows are not padded.

Shapes: B = exercises, T = tokens, m = symbols in an answer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import RunFailed, UserError
from fire_lm.models import (
    Decoder,
    keys_seen,
    padded_length,
    padded_positions,
    readable_length,
    reason_of_nan,
)
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.tasks.synthetic import Sample, Task
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.layouts import answers, lay_out, row_length
from fire_lm.tasks.synthetic.scoring import Tally, tally

_SHORTEST_ROW = 16  # the minimum width to which rows are padded

NOT_A_NUMBER = -1  # in place of the id of a token if the logits are NaN

TestPositions = Literal["plain", "even", "random"]

# A function (exercises, length) -> answers, int [B, m]; all exercises have this length.
Answering = Callable[[Sequence[Sample], int], np.ndarray]


def length_accuracies(
    task: Task,
    lengths: Sequence[int],
    answering: Answering,
    *,
    sequences: int,
    seed: int = 0,
    batch_size: int = 64,
) -> Iterator[tuple[int, Tally]]:
    """Yield each length with the tally of a model's answers to test exercises.

    Args:
        task: The task.
        lengths: The lengths of the exercises.
        answering: Returns the model's answers.
        sequences: The number of exercises of each length.
        seed: The seed of the exercises.
        batch_size: The maximum number of exercises that are answered together.

    Raises:
        UserError: The task has no exercises of one of the lengths.
    """
    batch_size = min(batch_size, sequences)
    for length in lengths:
        samples = fixed_samples(task, length, seed, range(sequences))
        counted = Tally()
        for start in range(0, sequences, batch_size):
            part = samples[start : start + batch_size]
            filled = part + part[-1:] * (batch_size - len(part))  # all batches share one program
            truth = np.stack([sample.answer for sample in part])
            counted += tally(task, truth, answering(filled, length)[: len(part)])
        yield length, counted


def slot_answers(model: Decoder, params: Any, task: Task) -> Answering:
    """Return a function that answers exercises in the layout `slots`.

    The function uses the model's evaluation positions. It raises RunFailed if the model returns
    NaN, because the most likely symbol would then be an arbitrary one.
    """
    exact = any(encoding.uses_context_length for encoding in model.encodings)

    def answering(samples: Sequence[Sample], length: int) -> np.ndarray:
        tokens = row_length(task, "slots", length)
        padded = tokens if exact else padded_length(tokens, _SHORTEST_ROW)
        width = readable_length(model, tokens, padded)
        pos_1T = padded_positions(model, tokens, width)[None]
        segment_1T = (np.arange(width) < tokens).astype(np.int32)[None]
        inputs_BT = lay_out(task, "slots", samples, width).inputs
        said_BT = np.asarray(predicted(model)(params, inputs_BT, pos_1T, segment_1T))
        if (said_BT[:, :tokens] == NOT_A_NUMBER).any():
            raise RunFailed(
                f"{task.label} at length {length}: the model returns NaN: "
                f"{reason_of_nan(model, params, tokens)}"
            )
        return answers(task, "slots", said_BT, length)

    return answering


def at_test(resampling: Resampling, positions: TestPositions | None) -> Resampling:
    """Return the resampling that determines the positions of test inputs.

    `plain` selects the positions 0, 1, 2 and so on. For a model that was trained with randomized
    positions, `even` spreads the positions evenly over the range from which training positions were
    drawn, and `random` uses one fixed random draw. None selects the model's own evaluation
    positions.

    Raises:
        UserError: `even` or `random` is requested for a model that was not trained with randomized
            positions.
    """
    if positions is None:
        return resampling
    if positions == "plain":
        return Resampling()
    if not isinstance(resampling, RandomizedPositions):
        raise UserError(
            f"--positions={positions} requires a model trained with RandomizedPositions, not "
            f"{type(resampling).__name__}: use --positions=plain"
        )
    return dataclasses.replace(resampling, evaluation=positions)


def positions_in(model: Decoder) -> TestPositions:
    """Return the kind of positions that `model` uses for test inputs."""
    return cast(TestPositions, getattr(model.resampling, "evaluation", "plain"))


@functools.lru_cache(maxsize=4)
def predicted(model: Decoder) -> jax.stages.Wrapped:
    """Return a jitted function that maps inputs `[B, T]` to the most likely ids, int32 `[B, T]`.

    An id is `NOT_A_NUMBER` if a logit of the token is NaN.
    """

    @jax.jit
    def ids(params: Any, inputs_BT: Any, pos_1T: Any, segment_1T: Any) -> jax.Array:
        segment_BT = jnp.broadcast_to(segment_1T, inputs_BT.shape)
        seen_1T = keys_seen(inputs_BT.shape[1])  # as in continuation_scores.py
        found = model.apply({"params": params}, inputs_BT, pos_1T, segment_BT, seen_BT=seen_1T)
        logits_BTV = cast(jax.Array, found)
        broken_BT = jnp.isnan(logits_BTV).any(axis=-1)
        return jnp.where(broken_BT, NOT_A_NUMBER, jnp.argmax(logits_BTV, axis=-1)).astype(jnp.int32)

    return ids
