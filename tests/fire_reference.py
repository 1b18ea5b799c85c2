"""FIRE written again in numpy float64, with its variants and the frozen normaliser.

It is differentiated by complex steps, f(p + ih).imag / h, which are exact up to rounding, so every
function here also takes complex parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.positions.fire import FIRE

HEADS = 12
TRAINED = 64  # the training length
# The default threshold is 16: row 0, rows around 16, and rows far beyond it and the training
# length.
QUERIES = np.array([0, 1, 2, 15, 16, 17, 63, 64, 200], np.int32)
KEYS = np.array([0, 1, 2, 7, 14, 15, 16, 17, 40, 63, 64, 150, 199, 200], np.int32)
CAUSAL = KEYS[None, :] <= QUERIES[:, None]


class Case(NamedTuple):
    """An encoding, and what the reference must know of it.

    Attributes:
      fire: The encoding.
      hidden_layers: The number of hidden layers.
      init_L: The initial threshold.
      limit: The limit of the normaliser in tokens, or None.
    """

    fire: FIRE
    hidden_layers: int = 2
    init_L: float = 16.0
    limit: float | None = None


def variant(**settings: Any) -> FIRE:
    return FIRE(HEADS, 64, TRAINED, 768, **settings)


def frozen(*, limit: float = TRAINED, layers: int = 2, **settings: Any) -> Case:
    """Return the case of a frozen normaliser, by default at the training length."""
    given: Any = "train_length" if limit == TRAINED else limit
    fire = variant(hidden_layers=layers, normalizer_limit=given, **settings)
    return Case(fire, layers, float(TRAINED) if "init_L" in settings else 16.0, limit)


EQUATION_4 = Case(variant())
APPENDIX_E = Case(variant(hidden_layers=1, init_L=512.0), 1, 512.0)
PAPER = {
    "eq4": EQUATION_4,
    "appendix_e": APPENDIX_E,
    "eq21": Case(variant(transform="identity", threshold=False)),
    "eq22": Case(variant(threshold=False)),
    "affine": Case(variant(hidden_layers=0), 0),
    "gelu": Case(variant(activation="gelu")),
    "final": Case(variant(hidden_layers=1, final_activation=True), 1),
    "fixed": Case(variant(learn_L=False)),
    "from_index_1": Case(variant(query_index_offset=1)),
    "fire_g": Case(variant(init_gamma=0.7)),
}
FROZEN = {
    "frozen": frozen(),
    "fire_t": frozen(init_L="train_length", learn_L=False),
    "frozen_eq21": frozen(transform="identity", threshold=False),
    "frozen_eq22": frozen(threshold=False),
    "frozen_affine": frozen(layers=0),
    "frozen_1_hidden": frozen(layers=1),
    "frozen_gelu": frozen(activation="gelu"),
    "frozen_final": frozen(layers=1, final_activation=True),
    "frozen_from_index_1": frozen(query_index_offset=1),
    "frozen_fire_g": frozen(init_gamma=0.7),
    "frozen_at_L": frozen(limit=1),
    "frozen_at_2T": frozen(limit=128.5),
}


def equation_4(
    leaves: dict[str, Any],
    case: Case,
    larger: Any = np.maximum,
    queries: np.ndarray = QUERIES,
    keys: np.ndarray = KEYS,
) -> np.ndarray:
    """Return `b[h, i, j] = g_i f(psi(i - j) / psi(max(L, i)))[h]`, also for complex parameters.

    With a limit, i in max(L, i) is at most limit - 1, counted as the queries are.
    """

    def absolute(z: Any) -> Any:
        return z if z.real >= 0 else -z

    def psi(x: Any) -> Any:
        return x if case.fire.transform == "identity" else np.log(absolute(leaves["c"]) * x + 1)

    i, j = queries.astype(np.float64)[:, None], keys.astype(np.float64)[None, :]
    normalizer, gain = i, 1.0
    if case.limit is not None:
        normalizer = np.where(i < case.limit - 1, i, case.limit - 1)
    normalizer = normalizer + case.fire.query_index_offset
    if case.fire.threshold:
        L = absolute(leaves.get("L_multiplier", np.float64(1)) * case.init_L)
        normalizer = np.where(larger(normalizer, L.real) == normalizer, normalizer, L)
        gain = (psi(normalizer) / psi(L)) ** leaves.get("gamma", 0.0)
    x = psi(np.abs(i - j)) / (psi(normalizer) + case.fire.epsilon)
    beyond = x.real > 1
    value, _ = perceptron(leaves, case, x)
    if case.limit is not None:  # a straight line beyond 1
        at_1, slope = perceptron(leaves, case, np.ones((1, 1)))
        value = np.where(beyond[..., None], at_1 + slope * (x[..., None] - 1), value)
    if case.fire.final_activation:
        value, _ = sigma(case, value)
    return np.moveaxis(value, -1, 0) * gain


def perceptron(leaves: dict[str, Any], case: Case, x: np.ndarray) -> tuple[Any, Any]:
    """Return f(x) and f'(x), each `[..., N]`, without the final activation."""
    value, slope = x[..., None], np.ones_like(x)[..., None]
    for layer in range(case.hidden_layers + 1):
        kernel = leaves[f"mlp/dense_{layer}/kernel"]
        value, slope = value @ kernel + leaves[f"mlp/dense_{layer}/bias"], slope @ kernel
        if layer < case.hidden_layers:
            value, factor = sigma(case, value)
            slope = factor * slope
    return value, slope


def sigma(case: Case, h: np.ndarray) -> tuple[Any, Any]:
    """Return the activation (ReLU, or the tanh approximation of GELU) and its derivative."""
    if case.fire.activation == "relu":
        return np.where(h.real > 0, h, 0), np.where(h.real > 0, 1.0, 0.0)
    root = np.sqrt(2 / np.pi)
    tanh = np.tanh(root * (h + 0.044715 * h**3))
    derivative = (1 + tanh) / 2 + h / 2 * (1 - tanh**2) * root * (1 + 3 * 0.044715 * h**2)
    return h / 2 * (1 + tanh), derivative


def numpy_gradient(leaves: dict[str, Any], case: Case, weights: np.ndarray) -> dict[str, Any]:
    """Return d sum(weights * bias) / d leaf for every number in every leaf."""
    gradient = {}
    for name, value in leaves.items():
        gradient[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            moved = value.astype(np.complex128)
            moved[index] += 1e-30j
            out = equation_4({**leaves, name: moved}, case)
            gradient[name][index] = np.sum(weights * out).imag / 1e-30
    return gradient


def named(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a tree in float64, by their paths."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(k.key for k in path): np.asarray(v, np.float64) for path, v in flat}


def init(fire: FIRE, **changed: float) -> dict[str, Any]:
    """Return initial parameters, with `changed` values for those that this variant has."""
    params = fire.init(jax.random.key(3))
    return params | {name: jnp.float32(v) for name, v in changed.items() if name in params}


def bias(fire: FIRE, params: Any) -> jax.Array:
    """Return FIRE's bias of QUERIES and KEYS, `[N, T, S]`."""
    return fire.bias(params, jnp.asarray(QUERIES)[None], jnp.asarray(KEYS)[None], len(KEYS))[0]
