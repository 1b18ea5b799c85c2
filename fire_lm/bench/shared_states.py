"""Training states of many encodings, in little more memory than a single state needs.

The states differ only in the encoding's learned parameters, which are small. All other arrays,
which would take gigabytes per encoding, exist in a single copy, which every contestant in turn
continues to train.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.models import Decoder
from fire_lm.sharding import POSITION
from fire_lm.training.compile import abstract_state
from fire_lm.training.step import TrainState, init_state


class States:
    """Training states by encoding name; the models differ only in their encoding."""

    def __init__(self, optimizer: optax.GradientTransformation, mesh: Mesh):
        self.optimizer = optimizer
        self._mesh = mesh
        self._arrays: dict[str, jax.Array] = {}
        self._layouts: dict[str, tuple[list[str], Any]] = {}

    def add(self, name: str, model: Decoder) -> None:
        """Initialise the arrays that no earlier state has, unless `name` was added before."""
        if name in self._layouts:
            return
        like = sharding.with_shardings(abstract_state(model, self.optimizer), self._mesh)
        leaves, tree = jax.tree_util.tree_flatten_with_path(like)
        keys = [self._key(name, sharding.path_name(path)) for path, _ in leaves]
        places = {key: leaf.sharding for key, (_, leaf) in zip(keys, leaves, strict=True)}
        missing = [key for key in keys if key not in self._arrays]

        def fresh(rng: jax.Array) -> dict[str, jax.Array]:
            state = jax.tree.leaves(init_state(model, self.optimizer, rng))
            arrays = dict(zip(keys, state, strict=True))
            return {key: arrays[key] for key in missing}

        made = jax.jit(fresh, out_shardings={key: places[key] for key in missing})
        self._arrays |= made(jax.random.key(0))
        self._layouts[name] = keys, tree

    def of(self, name: str) -> TrainState:
        keys, tree = self._layouts[name]
        state = jax.tree.unflatten(tree, [self._arrays[key] for key in keys])
        assert isinstance(state, TrainState)
        return state

    def replace(self, name: str, state: TrainState) -> None:
        """Store the state after a training step, which reused the memory of the previous state."""
        keys, _ = self._layouts[name]
        self._arrays.update(zip(keys, jax.tree.leaves(state), strict=True))

    @staticmethod
    def _key(name: str, path: str) -> str:
        return f"{name} {path}" if POSITION.search(path) else path
