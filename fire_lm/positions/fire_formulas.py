"""The formulas of FIRE as pure functions: psi, the normaliser, the length gain, and f_theta.

The equations are in `fire.py`, which holds their parameters.

Shapes: B batch, T queries, S keys, N heads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fire_lm.positions.base import Params, distance

Function = Callable[[jax.Array], jax.Array]

ACTIVATIONS: dict[str, Function] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
}


def log_transform(c: jax.Array) -> Function:
    """Return the function psi(x) = log(|c| x + 1)."""
    return lambda x: jnp.log1p(jnp.abs(c) * x)


def threshold_position(
    q_pos_BT: jax.Array, L: jax.Array | float, last: float | None = None
) -> jax.Array:
    """Return max(|L|, i), or max(|L|, min(i, last)) for a frozen normaliser, float32 `[B, T]`."""
    q_pos_BT = q_pos_BT.astype(jnp.float32)
    return jnp.maximum(q_pos_BT if last is None else jnp.minimum(q_pos_BT, last), jnp.abs(L))


def normalized_distance(
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    psi: Function,
    L: jax.Array | float,
    epsilon: float,
    last: float | None = None,
) -> jax.Array:
    """Return the argument of f in Eq. 4, float32 `[B, T, S]`.

    The argument lies in [0, 1] for keys that do not come after the query, except at distances
    beyond both L and `last`.
    """
    psi_distance_BTS = psi(distance(q_pos_BT, k_pos_BS).astype(jnp.float32))
    normalizer_BT = psi(threshold_position(q_pos_BT, L, last)) + epsilon
    return psi_distance_BTS / normalizer_BT[:, :, None]


def length_gain(
    q_pos_BT: jax.Array,
    psi: Function,
    L: jax.Array | float,
    gamma: jax.Array,
    last: float | None = None,
) -> jax.Array:
    """Return the length gain g_i of FIRE-G, float32 `[B, T]`; it is 1 up to position L.

    The gain is constant from position `last` on.
    """
    psi_L = psi(jnp.abs(jnp.asarray(L, jnp.float32)))
    return (psi(threshold_position(q_pos_BT, L, last)) / psi_L) ** gamma


def init_mlp(rng: jax.Array, widths: tuple[int, ...]) -> Params:
    """Initialise dense layers of the widths `widths[0] -> ... -> widths[-1]`, float32.

    Kernels and biases are uniform in +-1/sqrt(fan_in).
    """
    params = {}
    for index, (fan_in, fan_out) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        rng, kernel_rng, bias_rng = jax.random.split(rng, 3)
        bound = 1 / math.sqrt(fan_in)
        params[f"dense_{index}"] = {
            "kernel": jax.random.uniform(kernel_rng, (fan_in, fan_out), jnp.float32, -bound, bound),
            "bias": jax.random.uniform(bias_rng, (fan_out,), jnp.float32, -bound, bound),
        }
    return params


def mlp(params: Params, x: jax.Array, activation: Function = jax.nn.relu) -> jax.Array:
    """Apply f_theta of Eq. 4 to every entry of `x`: float32 `[...] -> [..., N]`."""
    hidden = x[..., None]
    last = len(params) - 1
    for index in range(len(params)):
        layer = params[f"dense_{index}"]
        bias = layer["bias"].reshape((1,) * (hidden.ndim - 1) + (-1,))
        # The default matmul precision on TPU would round these float32 operands to bfloat16.
        hidden = jnp.matmul(hidden, layer["kernel"], precision="highest") + bias
        if index < last:
            hidden = activation(hidden)
    return hidden


def straight_beyond_1(f: Function, x: jax.Array) -> jax.Array:
    """Return f(x) up to x = 1, and f(1) + f'(1) (x - 1) beyond, `[...] -> [..., N]`."""
    one = jnp.ones((), x.dtype)
    _, slope_N = jax.jvp(f, (one,), (one,))
    beyond = jax.nn.relu(x - 1)[..., None]
    return f(jnp.minimum(x, 1)) + slope_N.reshape((1,) * x.ndim + (-1,)) * beyond
