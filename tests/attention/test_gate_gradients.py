"""The gradients of forget gates in bfloat16, against NumPy in float64."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.attention import Layout, Terms, Tokens, attend
from fire_lm.attention.decay import cumulative_decay

LENGTH, WIDTH = 1024, 64


def arrays(half_life: float) -> dict[str, np.ndarray]:
    """Return bfloat16 values of q, k, v and the output's gradient `[T, H]`, and log gates `[T]`."""
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(LENGTH, WIDTH)) for name in ("q", "k", "v", "d_out")}
    x["q"] /= 4  # gates sum more errors where attention is spread over many keys
    x = {
        name: np.asarray(jnp.asarray(array, jnp.bfloat16), np.float64) for name, array in x.items()
    }
    return x | {"log_decay": -math.log(2) / half_life * rng.uniform(0.5, 1.5, size=LENGTH)}


def in_float64(x: dict[str, np.ndarray], sink: float | None) -> np.ndarray:
    """Return the gradient of the log gates."""
    c = np.cumsum(x["log_decay"])
    logits = x["q"] @ x["k"].T / math.sqrt(WIDTH) + c[:, None] - c[None, :]
    weights = np.exp(logits) * np.tri(LENGTH)
    weights /= weights.sum(axis=1, keepdims=True) + (0 if sink is None else math.exp(sink))
    d_weights = x["d_out"] @ x["v"].T
    d_logits = weights * (d_weights - (weights * d_weights).sum(axis=1, keepdims=True))
    # The gate of token m is in the logits of the queries from m on and the keys before m.
    return np.cumsum(d_logits.sum(axis=1)[::-1])[::-1] - np.cumsum(d_logits.sum(axis=0)[::-1])[::-1]


@functools.partial(jax.jit, static_argnames=("implementation", "sink"))
def gradient(x: dict[str, jax.Array], implementation: Any, sink: float | None) -> jax.Array:
    tokens = Tokens(jnp.arange(LENGTH)[None])
    q, k, v, d_out = (
        x[name][None, :, None].astype(jnp.bfloat16) for name in ("q", "k", "v", "d_out")
    )

    def loss(log_decay: jax.Array) -> jax.Array:
        both = tokens._replace(decay=cumulative_decay(log_decay[None, :, None]))
        terms = Terms(sink_N=None if sink is None else jnp.float32([sink]))
        layout = Layout(in_order=True, consecutive=True, implementation=implementation)
        out = attend(q, k, v, both, both, terms, layout=layout)
        return jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32))

    return jax.grad(loss)(x["log_decay"])


@pytest.mark.ci
@pytest.mark.parametrize(
    "implementation, half_life, sink",
    [
        ("dense", 10, None),
        ("dense", 200, None),
        ("blockwise", 10, None),
        ("blockwise", 200, None),
        ("tpu", 10, None),
        ("tpu", 200, None),
        ("tpu", 200, 1.0),
    ],
)
def test_gates_learn_in_bfloat16(implementation, half_life, sink):
    """A kernel that assumes that the sums over the keys are 0 is wrong by 2.4 % and 1.1 %."""
    x = arrays(half_life)
    wanted = in_float64(x, sink)
    ours = gradient({name: jnp.float32(a) for name, a in x.items()}, implementation, sink)
    assert np.linalg.norm(ours - wanted) < 0.006 * np.linalg.norm(wanted)
