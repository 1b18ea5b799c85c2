"""A check, before anything is allocated, that a run can use an optimizer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fire_lm.errors import UserError, first_line
from fire_lm.sharding import leaves_by_path
from fire_lm.training.optimizer import Optimizer
from fire_lm.training.step import updates_of


def check_optimizer(optimizer: Optimizer, train_steps: int, params: Any, setting: str) -> None:
    """Compute a learning rate, and trace an update with the shapes of `params`.

    `params` are the parameters, or their shapes. `setting` is the gin name of the optimizer.

    Raises:
      UserError: The optimizer has no learning rate; its update needs more than a training step
        provides, such as the loss as a function or the gradients of single examples; or the update
        changes the shapes or data types of its state.
    """
    _check_schedule(optimizer, train_steps, setting)

    def update(params: Any) -> tuple[Any, Any]:
        transformation = optimizer.build(train_steps)
        old = transformation.init(params), params
        updates, state = updates_of(transformation, params, *old, jnp.float32(0))
        return old, (state, optax.apply_updates(params, updates))

    try:
        old, new = jax.eval_shape(update, params)
    except UserError:
        raise
    except Exception as error:  # each optimizer has its own
        raise UserError(
            f"{setting} cannot make an update: {first_line(error)}\n"
            "an optimizer receives the gradients, the parameters and the loss of a batch: choose "
            "one that needs no more"
        ) from error
    kinds = [
        {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves_by_path(tree).items()}
        for tree in (old, new)
    ]
    for name in {**kinds[0], **kinds[1]}:
        before, after = (kind.get(name, "nothing") for kind in kinds)
        if before != after:
            raise UserError(
                f"{setting} cannot make an update: it changes '{name}' from {before} to {after}\n"
                "choose another optimizer, or another data type for its state"
            )


def _check_schedule(optimizer: Optimizer, train_steps: int, setting: str) -> None:
    try:
        schedule = optimizer.schedule(train_steps)
        rate = None if schedule is None else float(schedule(0))
    except UserError:
        raise
    except Exception as error:  # of the user's code
        raise UserError(
            f"{setting} has no learning rate: {first_line(error)}\n"
            "its method schedule(train_steps) must return a function of the number of updates"
        ) from error
    if rate is None:
        raise UserError(
            f"{setting} has no learning rate: bind its transformation's learning_rate, or end a "
            "list of transformations that scale by none with @optax.scale_by_learning_rate()"
        )
