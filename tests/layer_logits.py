"""The logits of one attention layer with an encoding, and derivatives to compare them with.

References are NumPy functions in float64 of q, k `[T, N, H]`, the layer's input y `[T, D]`, and
parameters.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention import Mask, attention_logits
from fire_lm.models import ModelSize
from fire_lm.models.mixers import LayerSpec, Reading
from fire_lm.models.mixers.attention import PerHead, heads
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.log_n import LogN

LENGTH, HEADS, WIDTH, HIDDEN, TRAINED = 7, 4, 6, 24, 5
SIZE = ModelSize(1, HIDDEN, HEADS, WIDTH, mlp_size=24, init_std=0.1)
CAUSAL = np.tri(LENGTH, dtype=bool)


def build(kind: Callable[..., PositionalEncoding], **fields: Any) -> PositionalEncoding:
    return kind(num_heads=HEADS, head_dim=WIDTH, train_length=TRAINED, hidden_size=HIDDEN, **fields)


def drawn(encoding: PositionalEncoding, std: float = 0.3) -> Any:
    """Return random parameters near the initial ones."""
    rng = np.random.default_rng(3)
    first = encoding.init(jax.random.key(0))
    return jax.tree.map(lambda x: jnp.float32(x + rng.normal(0, std, x.shape)), first)


def contents() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and y."""
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, LENGTH, HEADS, WIDTH))
    return q, k, rng.normal(size=(LENGTH, HIDDEN))


def logits(
    encoding: PositionalEncoding,
    params: Any,
    *,
    pos: Any = None,
    mask: Mask = Mask(),  # noqa: B008 (frozen)
    log_n: LogN | None = None,
    log_n_N: Any = None,
) -> jax.Array:
    """Return the logits `[N, T, S]` of `contents`, before the mask."""
    q, k, y = (jnp.float32(x)[None] for x in contents())
    spec = LayerSpec(SIZE, encoding, mask, log_n, "dense", consecutive=True)
    reading = Reading(jnp.arange(LENGTH)[None] if pos is None else jnp.asarray(pos)[None])
    params = encoding.prepare(params)
    decay = encoding.log_decay(params, y)
    parts = heads(spec, params, q, k, reading, PerHead(log_n_N), decay)
    return attention_logits(parts.q_BTNH, parts.k_BTNH, parts.tokens, parts.tokens, parts.terms)[0]


def products() -> np.ndarray:
    """Return q·k / sqrt(H), `[N, T, S]`."""
    q, k, _ = contents()
    return np.asarray(np.einsum("tnh,snh->nts", q, k) / np.sqrt(WIDTH))


def distances() -> np.ndarray:
    return np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None]


def check(found: Any, expected: np.ndarray) -> None:
    """Compare logits wherever a query sees a key."""
    found, expected = (np.asarray(x)[:, CAUSAL] for x in (found, expected))
    np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, np.max(np.abs(expected))))


def check_gradients(
    ours: Callable[[Any], jax.Array], reference: Callable[[Any], np.ndarray], params: Any
) -> None:
    """Compare the gradients of a sum of softmax weights with finite differences in float64."""
    weights = np.random.default_rng(4).normal(size=(HEADS, LENGTH, LENGTH))

    def loss(params: Any) -> jax.Array:
        masked = jnp.where(CAUSAL[None], ours(params), -1e30)
        return jnp.sum(weights * jax.nn.softmax(masked, axis=-1))

    def expected(params: Any) -> float:
        masked = np.where(CAUSAL[None], reference(params), -np.inf)
        exp = np.exp(masked - np.max(masked, axis=-1, keepdims=True))
        return float(np.sum(weights * exp / np.sum(exp, axis=-1, keepdims=True)))

    gradient = jax.jit(jax.grad(loss))(params)
    rng = np.random.default_rng(5)
    for name in params:
        direction = rng.normal(size=params[name].shape)
        step = 1e-6 * direction
        exact = {key: np.asarray(value, np.float64) for key, value in params.items()}
        up, down = (expected({**exact, name: exact[name] + sign * step}) for sign in (1, -1))
        slope = float(np.sum(np.asarray(gradient[name]) * direction))
        np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-3, atol=2e-5, err_msg=name)
