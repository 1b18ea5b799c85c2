"""Accuracy of a model on a synthetic task, length by length, in the layout `slots`.

An exercise is answered by one forward pass. Rows are padded to few widths, so that few programs are
compiled; padding is a segment of its own, which no token sees, so that the accuracy of a length
depends neither on the width nor on the batch. Where an encoding uses the length of the whole input,
rows are not padded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.models import Decoder
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.tasks.synthetic import Task
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.layouts import answers, lay_out, padded_length, row_length
from fire_lm.tasks.synthetic.scoring import Tally, tally

TestPositions = Literal["plain", "even", "random"]


def length_accuracies(
    model: Decoder,
    params: Any,
    task: Task,
    lengths: Sequence[int],
    *,
    sequences: int,
    seed: int = 0,
    positions: TestPositions = "plain",
    batch_size: int = 64,
) -> Iterator[tuple[int, Tally]]:
    """Each length with what the model's answers to its `sequences` test exercises are worth.

    Args:
        positions: where tokens stand: at 0, 1, 2, ...; or, of a model that was trained at
            randomised positions, spread evenly over these, or at one draw of them.

    Raises:
        UserError: the task has no such length, or the model no such positions.
    """
    resampling = at_test(model.resampling, positions)
    exact = any(encoding.uses_context_length for encoding in model.encodings)
    for length in lengths:
        samples = fixed_samples(task, length, seed, range(sequences))
        tokens = row_length(task, "slots", length)
        width = tokens if exact else padded_length(tokens)
        pos_T = np.asarray(resampling.evaluation_positions(tokens))[0]
        pos_1T = np.pad(pos_T, (0, width - tokens), mode="edge")[None]
        segment_1T = (np.arange(width) < tokens).astype(np.int32)[None]
        counted = Tally()
        for start in range(0, sequences, batch_size):
            part = samples[start : start + batch_size]
            rows = lay_out(task, "slots", part, width)
            read_BT = np.pad(rows.inputs, ((0, batch_size - len(part)), (0, 0)))
            said_BT = np.asarray(predicted(model)(params, read_BT, pos_1T, segment_1T))[: len(part)]
            truth = np.stack([sample.answer for sample in part])
            counted += tally(task, truth, answers(task, "slots", said_BT, length))
        yield length, counted


def at_test(resampling: Resampling, positions: TestPositions) -> Resampling:
    """The positions of a model's test inputs.

    Raises:
        UserError: the model was not trained at randomised positions.
    """
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
