"""Theorem 3.1: the constructions against the encodings, up to L0, beyond it, and with FIRE-G.

Compares with the encodings' own biases in float32, and with independent formulas in float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import theorem
from theorem import Construction

from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fire_formulas import log_transform, mlp
from fire_lm.positions.kerple import KERPLELog, KERPLEPower
from fire_lm.positions.sandwich import Sandwich
from fire_lm.positions.t5 import T5

HEADS = 4
LENGTHS = pytest.mark.parametrize("L0", [64, 100, 128, 257, 2048])
TABLE = np.random.default_rng(0).normal(size=(64, HEADS))
P = np.array([0.01, 0.5, 1.0, 2.0])  # both bounds of the power
A = np.array([0.01, 0.3, 0.7, 1.0])
SLOPES = 2.0 ** np.array([-2, -4, -6, -8])
SCALES = np.array([1 / 2, 1 / 4, 1 / 6, 1 / 8])
TERMS = np.arange(1, 65)
STARTS = np.array(  # of T5's buckets, from the formula
    [d for d in range(1, 32)]
    + [
        next(d for d in range(32, 129) if int(np.log(d / 32) / np.log(4) * 32 + 1e-9) >= step)
        for step in range(32)
    ]
)


class Case(NamedTuple):
    """An encoding, its construction for a head and L0, and its formula by distance."""

    encoding: type[PositionalEncoding]
    params: dict[str, np.ndarray]
    construct: Callable[[int, int], Construction]
    formula: Callable[[np.ndarray, int], np.ndarray]


CASES = {
    "t5": Case(
        T5,
        {"table": TABLE},
        lambda h, L0: theorem.t5(TABLE[:, h], STARTS, L0),
        lambda d, h: TABLE[np.sum(d[..., None] >= STARTS, axis=-1), h],
    ),
    "alibi": Case(
        ALiBi, {}, lambda h, L0: theorem.alibi(SLOPES[h], L0), lambda d, h: -SLOPES[h] * d
    ),
    "kerple_log": Case(
        KERPLELog,
        {"p": P, "a": A},
        lambda h, L0: theorem.kerple_log(P[h], A[h], L0),
        lambda d, h: -P[h] * np.log(1 + A[h] * d),
    ),
    "kerple_power": Case(
        KERPLEPower,
        {"p": P, "a": A},
        lambda h, L0: theorem.kerple_power(P[h], A[h], L0),
        lambda d, h: -A[h] * d ** P[h],
    ),
    "sandwich": Case(
        Sandwich,
        {},
        lambda h, L0: theorem.sandwich(SCALES[h], 10_000.0 ** (-TERMS / 64), L0),
        lambda d, h: SCALES[h] * np.sum(np.cos(d[..., None] / 10_000.0 ** (TERMS / 64)), axis=-1),
    ),
}
ENCODINGS = pytest.mark.parametrize("name", CASES)


def rows(last: int) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Return some queries up to `last`, all keys (from 1), and which keys are visible."""
    q_pos, k_pos = np.unique(np.linspace(1, last, 9).astype(int)), np.arange(1, last + 1)
    return jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None], k_pos <= q_pos[:, None]


def bias_of_encoding(case: Case, q_pos: jax.Array, k_pos: jax.Array) -> np.ndarray:
    """Return the bias from the encoding's own hook, `[N, T, S]`."""
    params = {name: jnp.float32(leaf) for name, leaf in case.params.items()}
    bias = case.encoding(HEADS, 8, 64, 96).bias(params, q_pos, k_pos, 64)
    assert bias is not None
    return np.asarray(bias, np.float64)[0]


def difference(
    case: Case,
    h: int,
    L0: int,
    last: int,
    gamma: float = 0.0,
    change: Callable[[Construction], Construction] = lambda construction: construction,
) -> float:
    """Return the largest |FIRE - encoding| of a head up to query `last`, divided by the range."""
    q_pos, k_pos, causal = rows(last)
    theirs = bias_of_encoding(case, q_pos, k_pos)[h][causal]
    ours = np.asarray(change(case.construct(h, L0)).bias(q_pos, k_pos, gamma))[0, 0][causal]
    return float(np.max(np.abs(ours - theirs)) / np.ptp(theirs))


@pytest.mark.ci
@LENGTHS
@ENCODINGS
def test_fire_is_the_encoding_up_to_L0_and_not_beyond(name, L0):
    """In float32. Beyond L0, FIRE stretches its values at L0 over the longer row."""
    for h in range(HEADS):
        assert difference(CASES[name], h, L0, last=L0) < 1e-5
        assert difference(CASES[name], h, L0, last=2 * L0) > 1e-3


@LENGTHS
@ENCODINGS
def test_equality_is_exact(name, L0):
    """In float64, the same weights agree at every distance in rows up to L0."""
    distance = np.arange(L0, dtype=np.float64)
    for h in range(HEADS):
        with jax.enable_x64(True):
            built = CASES[name].construct(h, L0)
            x = built.psi(jnp.asarray(distance)) / built.psi(jnp.asarray(built.L))
            ours = np.asarray(mlp(built.mlp, x, built.activation))[:, 0]
        assert ours.dtype == np.float64 and built.L == L0
        theirs = CASES[name].formula(distance, h)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * np.ptp(theirs))


@ENCODINGS
def test_any_other_weight_is_another_function(name):
    """A change of 1% in the first layer is noticed."""

    def scaled(construction: Construction) -> Construction:
        kernel = construction.mlp["dense_0"]["kernel"] * 1.01
        first = {**construction.mlp["dense_0"], "kernel": kernel}
        return construction._replace(mlp={**construction.mlp, "dense_0": first})

    assert difference(CASES[name], 2, 128, last=128, change=scaled) > 1e-3


def test_printed_offsets_of_t5_sit_on_the_jumps():
    """With -s_k instead of 1/2 - s_k, L0 (d / L0) - s_k is 0 only without rounding."""

    def printed(construction: Construction) -> Construction:
        first = construction.mlp["dense_0"]
        first = {**first, "bias": first["bias"] - 0.5}
        return construction._replace(mlp={**construction.mlp, "dense_0": first})

    assert difference(CASES["t5"], 0, 100, last=100) < 1e-5
    assert difference(CASES["t5"], 0, 100, last=100, change=printed) > 1e-2


def test_printed_weight_of_the_power_variant_underflows():
    """At both lower bounds, a^(1/p) = 0.01^100 is 0 in float32."""

    def printed(construction: Construction) -> Construction:
        layers: dict[str, Any] = jax.tree.map(np.copy, construction.mlp)
        layers["dense_0"]["kernel"] *= A[0] ** (1 / P[0])
        layers["dense_1"]["kernel"][:] = -1.0
        return construction._replace(mlp=layers)

    assert difference(CASES["kerple_power"], 0, 64, last=64) < 1e-5
    assert difference(CASES["kerple_power"], 0, 64, last=64, change=printed) > 0.5


@pytest.mark.parametrize("name", ["alibi", "kerple_log"])
@pytest.mark.parametrize("L0", [64, 100, 257])
def test_with_a_length_gain_it_is_the_encoding_at_every_length(name, L0):
    """FIRE-G with gamma = 1 agrees up to 16 L0; with gamma = 0 (Eq. 4) or 2, it does not."""
    for h in range(HEADS):
        far = {gamma: difference(CASES[name], h, L0, 16 * L0, gamma) for gamma in (0.0, 1.0, 2.0)}
        assert far[1.0] < 1e-5 < 1e-2 < min(far[0.0], far[2.0])


@pytest.mark.parametrize("name", ["t5", "kerple_power", "sandwich"])
def test_a_length_gain_needs_a_linear_f(name):
    assert difference(CASES[name], 1, 64, 16 * 64, gamma=1.0) > 1e-2


@pytest.mark.ci
@pytest.mark.parametrize("name, h", [("alibi", 0), ("alibi", 3), ("kerple_log", 2)])
def test_the_class_holds_the_linear_constructions(name, h):
    """FIRE itself, from its configuration and a parameter tree, agrees at 16 L0."""
    L0, built = 64, CASES[name].construct(h, 64)
    transform = "log" if name == "kerple_log" else "identity"
    fire = FIRE(
        *(1, 8, 64, 96),
        hidden_layers=0,
        transform=transform,
        learn_L=False,
        init_L=float(L0),
        init_gamma=1.0,
        epsilon=0.0,
    )
    params = {"mlp": jax.tree.map(jnp.float32, built.mlp), "gamma": jnp.float32(1)}
    if transform == "log":
        params["c"] = jnp.float32(A[h])
        x = jnp.float32([0.0, 3.0])
        np.testing.assert_array_equal(built.psi(x), log_transform(params["c"])(x))
    assert jax.tree.structure(params) == jax.tree.structure(fire.init(jax.random.key(0)))
    q_pos, k_pos, causal = rows(16 * L0)
    ours = np.asarray(fire.bias(params, q_pos, k_pos, 64))[0, 0][causal]
    theirs = bias_of_encoding(CASES[name], q_pos, k_pos)[h][causal]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.ptp(theirs))
