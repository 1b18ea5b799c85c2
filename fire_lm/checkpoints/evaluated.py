"""The parameters that evaluation uses, which the state of the optimizer determines.

For most optimizers, they are the parameters that are trained. For some, the trained parameters are
only points at which gradients are computed. The state of these optimizers is recognised by its
type or, in a checkpoint, by the fields of this type, wherever it lies in a chain.

Arrays are keyed by their paths, as in `0/z/layers/query/kernel`, which are the same in memory and
in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax import contrib

from fire_lm.sharding import leaves_by_path, path_name


class AverageState(NamedTuple):
    """The state of an optimizer whose parameters are averaged (`pretrain.ema_decay`).

    Attributes:
      average: The average of the parameters.
      averaged_updates: int32 []: the number of updates that are part of the average.
      optimizer: The state of the optimizer.
    """

    average: Any
    averaged_updates: jax.Array
    optimizer: Any


# For each type of state that determines the evaluated parameters, the fields that are read, or by
# which the type is recognised.
_SAM = contrib.SAMState, ("steps_since_sync", "cache")
_SCHEDULE_FREE = contrib.ScheduleFreeState, ("b1", "weight_sum", "step_count", "max_lr", "z")
_AVERAGE = AverageState, ("average", "averaged_updates")


def evaluation_params(params: Any, opt_state: Any) -> Any:
    """Return the parameters that a training state with these parameters evaluates."""
    evaluated = evaluation_arrays(leaves_by_path(params), leaves_by_path(opt_state))
    return jax.tree_util.tree_map_with_path(lambda path, _: evaluated[path_name(path)], params)


def evaluation_arrays(
    params: Mapping[str, jax.Array], state: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return the arrays of `evaluation_params`, keyed by the paths of the parameters.

    Args:
      params: The trained parameters, keyed by their paths.
      state: The arrays of the optimizer's state, or at least those in `arrays_read`, keyed by their
        paths below the state.
    """
    evaluated = dict(params)
    for owner in _owners(state, *_SAM):
        # Between two steps of the outer optimizer, the parameters are perturbed.
        synced = state[f"{owner}steps_since_sync"] == 0
        for name, kept in _below(state, f"{owner}cache/", evaluated):
            evaluated[name] = jnp.where(synced, evaluated[name], kept)
    for owner in _owners(state, *_SCHEDULE_FREE):
        # `optax.contrib.schedule_free_eval_params`; a mask may exclude parameters.
        b1 = state[f"{owner}b1"]
        for name, z in _below(state, f"{owner}z/", evaluated):
            y = evaluated[name]
            with jax.numpy_dtype_promotion("standard"):
                evaluated[name] = ((y - (1.0 - b1) * z) / b1).astype(y.dtype)
    for owner in _owners(state, *_AVERAGE):
        evaluated.update(_below(state, f"{owner}average/", evaluated))
    return evaluated


def arrays_read(names: Iterable[str], params: Iterable[str]) -> list[str]:
    """Return the paths of the arrays in an optimizer's state that `evaluation_arrays` reads.

    Args:
      names: The paths of all arrays in the state.
      params: The paths of the parameters to evaluate.
    """
    names, params = list(names), set(params)
    read = []
    for kind, fields in (_SAM, _SCHEDULE_FREE, _AVERAGE):
        for owner in _owners(names, kind, fields):
            for name in names:
                field, _, param = name.removeprefix(owner).partition("/")
                if name.startswith(owner) and field in fields and (not param or param in params):
                    read.append(name)
    return read


def _owners(names: Iterable[str], kind: Any, fields: tuple[str, ...]) -> list[str]:
    """Return the paths of all states of this kind, each with a slash at its end unless it is "".

    A state is of this kind if it has all of `fields`, which must be fields of `kind`.
    """
    assert set(fields) <= set(kind._fields), f"{kind.__name__} has other fields in this Optax"
    have: dict[str, set[str]] = {}
    for name in names:
        parts = name.split("/")
        for place, part in enumerate(parts):
            if part in fields:
                owner = "".join(f"{each}/" for each in parts[:place])
                have.setdefault(owner, set()).add(part)
    return [owner for owner, held in have.items() if held == set(fields)]


def _below(
    state: Mapping[str, Any], prefix: str, params: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the path and the array of each parameter that `state` has below `prefix`."""
    for name in list(params):
        if f"{prefix}{name}" in state:
            yield name, state[f"{prefix}{name}"]
