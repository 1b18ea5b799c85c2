"""Accuracy on a synthetic task, length by length, and answers in the layout `slots`.

Such an exercise is answered by one forward pass. Rows are padded to few widths, so that few
programs are compiled; padding is a segment of its own, which no token sees, so that the accuracy of
a length depends neither on the width nor on the batch. Where an encoding uses the length of the
whole input, rows are not padded.

Shapes: B exercises, m symbols of an answer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.models import Decoder
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.tasks.synthetic import Sample, Task
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.layouts import answers, lay_out, padded_length, row_length
from fire_lm.tasks.synthetic.scoring import Tally, tally

TestPositions = Literal["plain", "even", "random"]

# Answers of a model, int [B, m], to exercises of one length.
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
    """Yield each length with what the answers to its `sequences` test exercises are worth.

    Raises:
        UserError: the task has no exercise of a length.
    """
    batch_size = min(batch_size, sequences)
    for length in lengths:
        samples = fixed_samples(task, length, seed, range(sequences))
        counted = Tally()
        for start in range(0, sequences, batch_size):
            part = samples[start : start + batch_size]
            filled = part + part[-1:] * (batch_size - len(part))  # one program for all batches
            truth = np.stack([sample.answer for sample in part])
            counted += tally(task, truth, answering(filled, length)[: len(part)])
        yield length, counted


def slot_answers(model: Decoder, params: Any, task: Task) -> Answering:
    """Answers in the layout `slots`, at the model's positions of evaluation."""
    exact = any(encoding.uses_context_length for encoding in model.encodings)

    def answering(samples: Sequence[Sample], length: int) -> np.ndarray:
        tokens = row_length(task, "slots", length)
        width = tokens if exact else padded_length(tokens)
        pos_T = np.asarray(model.resampling.evaluation_positions(tokens))[0]
        pos_1T = np.pad(pos_T, (0, width - tokens), mode="edge")[None]
        segment_1T = (np.arange(width) < tokens).astype(np.int32)[None]
        read_BT = lay_out(task, "slots", samples, width).inputs
        said_BT = np.asarray(predicted(model)(params, read_BT, pos_1T, segment_1T))
        return answers(task, "slots", said_BT, length)

    return answering


def at_test(resampling: Resampling, positions: TestPositions | None) -> Resampling:
    """The positions of test inputs: at 0, 1, 2, ... (`plain`); or, of a model that was trained at
    randomized positions, spread evenly over these (`even`), or at one draw of them (`random`). The
    default is the model's own positions of evaluation.

    Raises:
        UserError: the model was not trained at randomized positions.
    """
    if positions is None:
        return resampling
    if positions == "plain":
        return Resampling()
    if not isinstance(resampling, RandomizedPositions):
        raise UserError(
            f"positions '{positions}' are for models trained at RandomizedPositions, not at "
            f"{type(resampling).__name__}: use 'plain'"
        )
    return dataclasses.replace(resampling, evaluation=positions)


@functools.lru_cache(maxsize=4)
def predicted(model: Decoder) -> jax.stages.Wrapped:
    """Jitted: the likeliest id at each place, int32 `[B, T]`, of what is read, `[B, T]`."""

    @jax.jit
    def ids(params: Any, read_BT: Any, pos_1T: Any, segment_1T: Any) -> jax.Array:
        segment_BT = jnp.broadcast_to(segment_1T, read_BT.shape)
        logits_BTV = cast(jax.Array, model.apply({"params": params}, read_BT, pos_1T, segment_BT))
        return jnp.argmax(logits_BTV, axis=-1).astype(jnp.int32)

    return ids
