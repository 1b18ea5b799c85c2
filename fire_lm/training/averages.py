"""Exponential moving averages of parameters, as a wrapper around an optimizer.

A run may turn its average on or off when it resumes (`--allow_config_change`). An average that is
turned on starts from the parameters of the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fire_lm.checkpoints import AverageState, evaluation_params
from fire_lm.training.step import TrainState


def averaged(
    optimizer: optax.GradientTransformation, decay: float
) -> optax.GradientTransformationExtraArgs:
    """Return `optimizer` with a state that also contains an average of the parameters.

    The average starts from the initial parameters. Update n, counted from 0, is averaged with the
    decay rate min(decay, (1 + n) / (10 + n)), as by TensorFlow's ExponentialMovingAverage with
    `num_updates`, so the average soon forgets the initial parameters and needs no correction. The
    updates themselves do not change. What is averaged is what would be evaluated without an average
    (`evaluation_params`).
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> AverageState:
        # A copy, because a training step donates both arrays.
        return AverageState(jax.tree.map(jnp.copy, params), jnp.int32(0), optimizer.init(params))

    def update(
        grads: Any, state: AverageState, params: Any = None, **extra: Any
    ) -> tuple[Any, AverageState]:
        updates, inner = optimizer.update(grads, state.optimizer, params, **extra)
        new = evaluation_params(optax.apply_updates(params, updates), inner)
        count = state.averaged_updates.astype(jnp.float32)
        weight = 1.0 - jnp.minimum(decay, (1.0 + count) / (10.0 + count))
        average = jax.tree.map(lambda old, own: old + weight * (own - old), state.average, new)
        return updates, AverageState(average, state.averaged_updates + 1, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def as_saved(like: TrainState, paths: Iterable[str]) -> TrainState:
    """Return `like`, shapes of the state, with an average if and only if a checkpoint has one.

    `paths` are the paths of the arrays in the checkpoint.
    """
    own, average = like.opt_state, isinstance(like.opt_state, AverageState)
    if average == any(path.startswith("opt_state/average/") for path in paths):
        return like
    other = own.optimizer if average else AverageState(like.params, like.step, own)
    return dataclasses.replace(like, opt_state=other)


def as_configured(state: TrainState, like: TrainState) -> TrainState:
    """Return a restored state with an average if and only if `like` has one."""
    own, average = state.opt_state, isinstance(state.opt_state, AverageState)
    if average == isinstance(like.opt_state, AverageState):
        return state
    if average:
        return dataclasses.replace(state, opt_state=own.optimizer)
    # Copies, because a training step donates all arrays.
    copies, zero = jax.tree.map(jnp.copy, state.params), jnp.zeros_like(state.step)
    return dataclasses.replace(state, opt_state=AverageState(copies, zero, own))
