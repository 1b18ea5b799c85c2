"""A ReLU MLP of one variable, computed exactly as a sum of hinges.

A hinge costs one multiply-add per value. Between two kinks (the points where the slope of f
changes), every unit of f_theta is either on or off, so f is linear there, and for x >= 0

    f(x) = f(0) + f'(0) x + sum_k (s_k - s_(k-1)) max(x - z_k, 0)

with kinks z_1 < z_2 < ... above 0, where s_k is the slope to the right of z_k, and s_0 = f'(0).
(To check: at 0 the right side equals f(0); to the right of z_k it has slope s_k; and it is
continuous, as f is.) The kinks that a layer adds are the roots of its units' inputs. Between two
kinks of the preceding layers, an input is linear, so its root is known: for any point m of the
interval, z = m - input(m) / input'(m).

The right side equals f for all weights in a neighbourhood of the current ones, so its derivative
with respect to the weights, through slopes and kinks, is that of f. (This fails where two units
share a kink exactly, since no interval lies between them; this does not happen with random or
trained weights.) With only the kinks below some point, it is f up to there, and a straight line
beyond. The architecture does not keep the number of kinks small; it is small only for typical
weights: about 20 of 32 + 32 * 33 possible kinks for two hidden layers of 32 lie below 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.positions.base import Params


class Hinges(NamedTuple):
    """The function f, with at most K kinks and N outputs.

    Attributes:
      value_N, slope_N: f(0) and f'(0).
      kink_K: The kinks in increasing order; unused entries are not below them.
      change_KN: The change of slope at each kink; 0 for unused kinks.
    """

    value_N: jax.Array
    slope_N: jax.Array
    kink_K: jax.Array
    change_KN: jax.Array


def hinges(params: Params, max_kinks: int, end: float = 1.0) -> tuple[Hinges, jax.Array]:
    """Return the hinges of the ReLU MLP `params` (`fire_formulas.mlp`) and their number, int32.

    They represent f on [0, end], where `end` may be infinite, unless f has more than `max_kinks`
    kinks there.
    """
    kink_K, unit_K, count = _kinks(jax.lax.stop_gradient(params), max_kinks, end)
    inside_J = _middles(kink_K, end)
    values, slopes = _inputs(params, jnp.concatenate([kink_K, inside_J]))
    kink_K = _differentiable(kink_K, unit_K, values[:-1], slopes[:-1])
    value_JN, slope_JN = values[-1][max_kinks:], slopes[-1][max_kinks:]
    value_N = value_JN[0] - slope_JN[0] * inside_J[0]
    return Hinges(value_N, slope_JN[0], kink_K, jnp.diff(slope_JN, axis=0)), count


def _kinks(params: Params, max_kinks: int, end: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the kinks, the unit whose input is 0 at each, and the number of kinks.

    Units are numbered through all hidden layers; the unit of unused entries is -1.
    """
    kink_K, unit_K = jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32)
    count, units = jnp.int32(0), 0
    for layer in range(len(params) - 1):
        inside_J = _middles(kink_K, end)
        value_JW, slope_JW = (of_layers[-1] for of_layers in _inputs(params, inside_J, layer + 1))
        low_J = jnp.concatenate([jnp.zeros(1), kink_K])[:, None]
        high_J = jnp.append(kink_K, end)[:, None]
        root_JW = inside_J[:, None] - value_JW / jnp.where(slope_JW == 0, 1.0, slope_JW)
        live_JW = (slope_JW != 0) & (root_JW > low_J) & (root_JW < high_J)
        count += jnp.sum(live_JW.astype(jnp.int32))
        number_JW = jnp.where(live_JW, jnp.arange(units, units + live_JW.shape[1])[None], -1)
        kinks = jnp.concatenate([kink_K, jnp.where(live_JW, root_JW, end).ravel()])
        numbers = jnp.concatenate([unit_K, number_JW.ravel().astype(jnp.int32)])
        kink_K, unit_K = (x[:max_kinks] for x in jax.lax.sort((kinks, numbers), num_keys=1))
        units += live_JW.shape[1]
    unused = (0, max_kinks - len(kink_K))
    kink_K, unit_K = (
        jnp.pad(x, unused, constant_values=y) for x, y in ((kink_K, end), (unit_K, -1))
    )
    return _finite(kink_K, end), unit_K, count


def _differentiable(
    kink_K: jax.Array, unit_K: jax.Array, values: list[jax.Array], slopes: list[jax.Array]
) -> jax.Array:
    """Return the kinks with their first derivatives with respect to the weights.

    The first entries of `values` and `slopes` are those of the inputs of all hidden units at the
    kinks. A kink is where the input of its unit is 0, so if the weights change this input by d,
    they move the kink by -d / slope.
    """
    if not values:
        return kink_K
    value_KU, slope_KU = (jnp.concatenate(x, axis=1)[: len(kink_K)] for x in (values, slopes))
    own_KU = unit_K[:, None] == jnp.arange(value_KU.shape[1], dtype=jnp.int32)[None]
    value_K = jnp.sum(jnp.where(own_KU, value_KU, 0.0), axis=1)
    slope_K = jax.lax.stop_gradient(jnp.sum(jnp.where(own_KU, slope_KU, 0.0), axis=1))
    move_K = (value_K - jax.lax.stop_gradient(value_K)) / jnp.where(slope_K == 0, 1.0, slope_K)
    return kink_K - move_K


def evaluate(f: Hinges, x: jax.Array) -> jax.Array:
    """Return f of every entry of `x`: float32 `[...] -> [N, ...]`."""
    out_NP = _evaluate(f.value_N, f.slope_N, f.kink_K, f.change_KN, x.ravel())
    return out_NP.reshape(-1, *x.shape)


def segments(f: Hinges) -> tuple[jax.Array, jax.Array]:
    """Return the slope and offset `[K + 1, N]` of f(x) = slope x + offset in each segment."""
    none = jnp.zeros_like(f.change_KN[:1])
    slope = jnp.cumsum(jnp.concatenate([none, f.change_KN]), axis=0)
    offset = -jnp.cumsum(jnp.concatenate([none, f.change_KN * f.kink_K[:, None]]), axis=0)
    return f.slope_N[None] + slope, f.value_N[None] + offset


def first(f: Hinges, kinks: int) -> Hinges:
    """Return f with only its first `kinks` hinges; f must not have more than `kinks` kinks."""
    return f._replace(kink_K=f.kink_K[:kinks], change_KN=f.change_KN[:kinks])


@jax.custom_vjp
def _evaluate(
    value_N: jax.Array, slope_N: jax.Array, kink_K: jax.Array, change_KN: jax.Array, x_P: jax.Array
) -> jax.Array:
    """Return f at each x, `[N, P]`, with plain matrix products in the forward and backward passes.

    The gradient is written explicitly, because JAX would derive products of transposed operands,
    which take ten times as long on a CPU.
    """
    bends_NP = _product(change_KN.T, _above(x_P, kink_K))
    return value_N[:, None] + slope_N[:, None] * x_P[None] + bends_NP


def _evaluate_forward(*inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _evaluate(*inputs), inputs


def _evaluate_backward(
    inputs: tuple[jax.Array, ...], d_NP: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    _, slope_N, kink_K, change_KN, x_P = inputs
    d_change_KN = _product(_above(x_P, kink_K), d_NP.T)
    through_KP = jnp.where(x_P[None] > kink_K[:, None], _product(change_KN, d_NP), 0.0)
    d_x_P = jnp.sum(through_KP, axis=0) + _product(slope_N[None], d_NP)[0]
    d_slope_N = _product(d_NP, x_P[:, None])[:, 0]
    return jnp.sum(d_NP, axis=1), d_slope_N, -jnp.sum(through_KP, axis=1), d_change_KN, d_x_P


_evaluate.defvjp(_evaluate_forward, _evaluate_backward)


def _above(x_P: jax.Array, kink_K: jax.Array) -> jax.Array:
    """Return max(x - z, 0), `[K, P]`."""
    return jax.nn.relu(x_P[None] - kink_K[:, None])


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    # The default precision on TPU would round these float32 operands to bfloat16.
    return jnp.matmul(a, b, precision="highest")


def _middles(kink_K: jax.Array, end: float) -> jax.Array:
    """Return a point in each of the K + 1 intervals: the middle, or near the start of the last.

    The slope in an interval does not depend on the point at which it is measured.
    """
    ends = _finite(jnp.append(jnp.concatenate([jnp.zeros(1), kink_K]), end), end)
    return (ends[1:] + ends[:-1]) / 2


def _finite(x_K: jax.Array, end: float) -> jax.Array:
    """If `end` is infinite, replace points at infinity by the last finite point plus 1."""
    if math.isfinite(end):
        return x_K
    last = jnp.max(jnp.where(jnp.isfinite(x_K), x_K, 0.0), initial=0.0)
    return jnp.minimum(x_K, last + 1)


def _inputs(
    params: Params, x_P: jax.Array, layers: int | None = None
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the values and slopes at each x, `[P, W]`, of the inputs of the units, by layer.

    These are the first `layers` layers; None means all of them. The inputs of the last layer are
    the outputs of f.
    """

    def inputs(x_P: jax.Array) -> list[jax.Array]:
        hidden, of_layers = x_P[:, None], []
        for index in range(len(params) if layers is None else layers):
            weights = params[f"dense_{index}"]
            if index:
                hidden = jax.nn.relu(hidden)
            hidden = jnp.matmul(hidden, weights["kernel"], precision="highest")
            hidden = hidden + weights["bias"][None]
            of_layers.append(hidden)
        return of_layers

    return jax.jvp(inputs, (x_P,), (jnp.ones_like(x_P),))
