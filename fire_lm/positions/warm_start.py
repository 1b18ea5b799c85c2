"""An MLP of one variable that starts as the piecewise linear interpolation of given values.

This is FIRE's warm start. Theorem 3.1 of the FIRE paper states which encodings FIRE can represent.
At step 0, the weights of this module make f_theta approximate such an encoding, in the form that
is then trained (ReLU with biases).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.positions.base import Params


def knots(width: int) -> np.ndarray:
    """Return the knots of an MLP whose last hidden layer has `width` units, float64 `[width + 1]`.

    The knots are evenly spaced on [0, 1], the range of FIRE's normalized distance. The slope
    changes at every knot but the last, which only fixes the value at the end of the range.
    """
    return np.linspace(0.0, 1.0, width + 1)


def interpolating_mlp(params: Params, values_KN: jax.Array) -> Params:
    """Change the parameters of a ReLU MLP so that its values at `knots` are `values_KN`.

    The first unit of each hidden layer except the last copies x. Each unit of the last hidden layer
    is a hinge relu(x - knot), which the output layer weights by the change of slope. The other
    units keep their random weights; they do not affect the output at step 0, but they are trained.

    Args:
      params: Parameters as returned by `fire_formulas.init_mlp`, with one or more hidden layers of
        equal width.
      values_KN: The values of each of the N outputs at `knots(width)`, where K = width + 1.
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
    """Make the first unit a copy of the layer's first input, which must not be negative."""
    return {
        "kernel": layer["kernel"].at[:, 0].set(0.0).at[0, 0].set(1.0),
        "bias": layer["bias"].at[0].set(0.0),
    }
