"""The shapes of a model's parameters."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.models.decoder import Decoder


@functools.lru_cache(maxsize=16)
def parameter_shapes(model: Decoder) -> Any:
    """Return the shapes and data types of a model's parameters, without allocating arrays.

    An input of one token suffices, because the shapes do not depend on its length. Initialisation
    takes half a second to trace, and a start asks for the shapes several times.
    """
    tokens_BT = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens_BT, tokens_BT)["params"]
