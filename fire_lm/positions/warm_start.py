"""An MLP of one variable that starts as a given function: piecewise linear between its values.

For FIRE's warm start. Theorem 3.1 of the FIRE paper says which functions f_theta can be; these
weights make it one of them at step 0, in the form that is trained afterwards (ReLU, biases).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.positions.base import Params


def knots(width: int) -> np.ndarray:
    """The knots of an MLP with `width` units in its last hidden layer, float64 `[width + 1]`.

    Evenly on [0, 1], the range of FIRE's normalized distance; the end is a value, not a bend.
    """
    return np.linspace(0.0, 1.0, width + 1)


def interpolating_mlp(params: Params, values_KN: jax.Array) -> Params:
    """`params` of a ReLU MLP changed so that it goes through `values_KN` at its `knots`.

    The first unit of all but the last hidden layer carries x; each unit of the last one is a hinge
    relu(x - knot), and the output weighs hinges by the change of slope. The other units keep their
    random weights and are not read at step 0, but learn.

    Args:
      params: as from `fire.init_mlp`, with at least one hidden layer of equal widths.
      values_KN: values at `knots(width)`, K = width + 1, for each of N outputs.
    """
    last = len(params) - 1
    width = params[f"dense_{last}"]["kernel"].shape[0]
    bend_W = jnp.asarray(knots(width)[:-1], jnp.float32)
    layers = dict(params)
    for index in range(last - 1):
        layers[f"dense_{index}"] = _carry_x(params[f"dense_{index}"])
    kernel = params[f"dense_{last - 1}"]["kernel"]
    hinges = jnp.zeros_like(kernel).at[0].set(1.0)
    layers[f"dense_{last - 1}"] = {"kernel": hinges, "bias": -bend_W}
    slope_WN = jnp.diff(values_KN, axis=0) * width
    change_WN = jnp.diff(slope_WN, axis=0, prepend=jnp.zeros_like(slope_WN[:1]))
    layers[f"dense_{last}"] = {"kernel": change_WN, "bias": values_KN[0]}
    return layers


def _carry_x(layer: Params) -> Params:
    """The first unit is a copy of the layer's first input, which is not negative."""
    return {
        "kernel": layer["kernel"].at[:, 0].set(0.0).at[0, 0].set(1.0),
        "bias": layer["bias"].at[0].set(0.0),
    }
