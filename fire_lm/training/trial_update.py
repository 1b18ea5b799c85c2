"""A check, before anything is allocated, that a training step can use an optimizer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fire_lm.errors import UserError, first_line
from fire_lm.sharding import path_name
from fire_lm.training.step import updates_of


def check_optimizer(optimizer: optax.GradientTransformation, params: Any, setting: str) -> None:
    """Trace an update with the shapes of `params`, as a training step makes it.

    Args:
      optimizer: The optimizer.
      params: The parameters, or their shapes.
      setting: The gin name of the optimizer, for the error message.

    Raises:
      UserError: The update needs more than a training step provides, such as the loss as a function
        or the gradients of single examples; or it changes the shapes or data types of its state.
    """

    def update(params: Any) -> tuple[Any, Any]:
        old = optimizer.init(params), params
        updates, state = updates_of(optimizer, params, *old, jnp.float32(0))
        return old, (state, optax.apply_updates(params, updates))

    try:
        old, new = jax.eval_shape(update, params)
    except Exception as error:  # each optimizer has its own
        raise UserError(
            f"{setting} cannot make an update: {first_line(error)}\n"
            "an optimizer receives the gradients, the parameters and the loss of a batch: choose "
            "one that needs no more"
        ) from error
    kinds = [
        {
            path_name(path): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (old, new)
    ]
    for name in {**kinds[0], **kinds[1]}:
        before, after = (kind.get(name, "nothing") for kind in kinds)
        if before != after:
            raise UserError(
                f"{setting} cannot make an update: it changes '{name}' from {before} to {after}\n"
                "choose another optimizer, or another data type for its state"
            )
