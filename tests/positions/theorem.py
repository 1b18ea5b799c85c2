"""Theorem 3.1 of the FIRE paper as code: FIRE can represent T5, ALiBi, KERPLE and Sandwich.

Source: Li et al. (ICLR 2024), Theorem 3.1 and Appendix A.2, Eq. 7 to 20. Each function takes one
head of an encoding and a length L0, and returns psi, the threshold L = L0, f_theta and the
activation with which FIRE equals that encoding for 0 < j <= i <= L0 (epsilon = 0). Beyond L0 the
two differ, because FIRE interpolates there.

FIRE-G extends the theorem: where f is linear (ALiBi, KERPLE-log), a length gain with gamma = 1
cancels the division by psi(max(L, i)), and the equality holds at every length.

Two constructions differ from those of the paper, which fail in floating point:
* T5 uses offsets 1/2 - s_k instead of -s_k, so that rounding cannot move a jump past its distance;
* KERPLE-power uses v_1 = L0 and v_2 = -a instead of a^(1/p) L0 and -1, because a^(1/p) underflows
  for small p.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.positions.base import Params
from fire_lm.positions.fire_formulas import (
    Function,
    length_gain,
    log_transform,
    mlp,
    normalized_distance,
)


class Construction(NamedTuple):
    """The bias of one head, expressed with the terms of Eq. 4.

    Attributes:
      psi: The transform of distances.
      L: The threshold in tokens.
      mlp: The parameters of f_theta for `fire_formulas.mlp`, as NumPy float64 arrays.
      activation: The activation between the layers of f_theta.
    """

    psi: Function
    L: float
    mlp: Params
    activation: Function

    def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array, gamma: float = 0.0) -> jax.Array:
        """Return the bias of FIRE, or of FIRE-G if gamma is not 0, float32 `[B, 1, T, S]`."""
        x_BTS = normalized_distance(q_pos_BT, k_pos_BS, self.psi, self.L, epsilon=0.0)
        out_BTS1 = mlp(self.mlp, x_BTS, self.activation)
        gain_BT = length_gain(q_pos_BT, self.psi, self.L, jnp.float32(gamma))
        return gain_BT[:, None, :, None] * jnp.moveaxis(out_BTS1, -1, 1)


def identity(x: jax.Array) -> jax.Array:
    return x


def step(x: jax.Array) -> jax.Array:
    """Return the step function: 1 where x >= 0, and 0 elsewhere."""
    return (x >= 0).astype(x.dtype)


def _linear(v: float) -> Params:
    """Return the parameters of f(x) = v x."""
    return {"dense_0": {"kernel": np.array([[v]], np.float64), "bias": np.zeros(1)}}


def _one_hidden_layer(
    v1_K: np.ndarray, b1_K: np.ndarray, v2_K: np.ndarray, b2: float = 0.0
) -> Params:
    """Return the parameters of f(x) = v2 · activation(v1 x + b1) + b2."""
    return {
        "dense_0": {"kernel": v1_K[None, :], "bias": b1_K},
        "dense_1": {"kernel": v2_K[:, None], "bias": np.array([b2], np.float64)},
    }


def t5(table_K: np.ndarray, start_K: np.ndarray, L0: int) -> Construction:
    """Construct Eq. 7 to 12: a step function with one hidden neuron per bucket except the first.

    Args:
      table_K: The biases r_0, r_1, ... of the head, one per bucket.
      start_K: The smallest distances s_1, s_2, ... of the buckets except the first.
    """
    table_K, start_K = np.asarray(table_K, np.float64), np.asarray(start_K, np.float64)
    v1_K = np.full(start_K.shape, float(L0))
    weights = _one_hidden_layer(v1_K, 0.5 - start_K, np.diff(table_K), table_K[0])
    return Construction(identity, float(L0), weights, step)


def alibi(slope: float, L0: int) -> Construction:
    """Construct Eq. 13: b = -slope d for the distance d."""
    return Construction(identity, float(L0), _linear(-slope * L0), identity)


def kerple_log(p: float, a: float, L0: int) -> Construction:
    """Construct Eq. 14: b = -p log(1 + a d), where psi(d) = log(1 + a d)."""
    return Construction(
        log_transform(jnp.asarray(a)), float(L0), _linear(-p * np.log1p(a * L0)), identity
    )


def kerple_power(p: float, a: float, L0: int) -> Construction:
    """Construct Eq. 15: b = -a d^p, where the power is the activation of one hidden neuron."""
    weights = _one_hidden_layer(np.array([float(L0)]), np.zeros(1), np.array([-a]))
    return Construction(identity, float(L0), weights, lambda x: x**p)


def sandwich(scale: float, frequency_K: np.ndarray, L0: int) -> Construction:
    """Construct Eq. 16 to 20: b = scale * sum of cos(d frequency), one hidden neuron per term."""
    v1_K = L0 * np.asarray(frequency_K, np.float64)
    weights = _one_hidden_layer(v1_K, np.zeros(v1_K.shape), np.full(v1_K.shape, scale))
    return Construction(identity, float(L0), weights, jnp.cos)
