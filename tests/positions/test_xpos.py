"""xPos against its definition in float64: complex numbers of changing size."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.resampling import ExponentialPositions
from fire_lm.positions.xpos import XPos, decay_rates

NUM_HEADS, HEAD_DIM = 2, 16
XPOS = XPos(NUM_HEADS, HEAD_DIM, train_length=64, hidden_size=32)
ZETA = (np.arange(0, HEAD_DIM, 2) + 0.4 * HEAD_DIM) / (1.4 * HEAD_DIM)


def published_logits(q: np.ndarray, k: np.ndarray, q_pos: Any, k_pos: Any) -> np.ndarray:
    """Return sum over pairs of Re(q conj(k) zeta^((i - j) / 512) e^(i theta (i - j))).

    Because the factors depend on differences only, nothing overflows.
    """
    apart = np.asarray(q_pos, np.float64)[:, None] - np.asarray(k_pos, np.float64)[None, :]
    theta = 10_000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM / 2))
    with np.errstate(over="ignore"):  # keys after the query, which are not compared
        factor = np.exp(apart[..., None] * (np.log(ZETA) / 512 + 1j * theta))
    z_q, z_k = (x[0, ..., 0::2] + 1j * x[0, ..., 1::2] for x in (q, k))
    return np.einsum("tnk,snk,tsk->nts", z_q, z_k.conj(), factor).real


def content(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, length, NUM_HEADS, HEAD_DIM))


def rotate(xpos: XPos, q: Any, k: Any, q_pos: Any, k_pos: Any, context: int, dtype=jnp.float32):
    q_pos, k_pos = jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None]
    return compiled(xpos, context, jnp.asarray(q, dtype), jnp.asarray(k, dtype), q_pos, k_pos)


@functools.partial(jax.jit, static_argnums=(0, 1))  # faster than operation by operation
def compiled(xpos: XPos, context: int, q: Any, k: Any, q_pos: Any, k_pos: Any) -> Any:
    return xpos.rotate({}, q, k, q_pos, k_pos, context)


def logits(q: Any, k: Any, q_pos: Any, k_pos: Any, context: int) -> np.ndarray:
    """Return `[N, T, S]` in float32, as attention computes it."""
    q, k = (np.asarray(x) for x in rotate(XPOS, q, k, q_pos, k_pos, context))
    assert q.dtype == np.float32
    return np.einsum("btnh,bsnh->nts", q, k)


@pytest.mark.parametrize("start, length", [(0, 1), (0, 2), (0, 17), (0, 512), (8192 - 40, 40)])
def test_logits_are_the_published_ones(start, length):
    """They agree for keys up to the query; those of plain RoPE would not."""
    q_pos, k_pos = start + np.arange(length), np.arange(0, start + length, max(1, start // 99))
    q, k = content(length, 0), content(len(k_pos), 1)
    causal = k_pos[None, :] <= q_pos[:, None]
    ours = logits(q, k, q_pos, k_pos, start + length)[:, causal]
    paper = published_logits(q, k, q_pos, k_pos)[:, causal]
    np.testing.assert_allclose(ours, paper, rtol=0, atol=1e-5 * np.max(np.abs(paper)) + 1e-7)
    turned_alone = logits(q, k, q_pos, k_pos, 10**9)[:, causal]  # no decay
    assert length < 17 or np.max(np.abs(turned_alone - paper)) > 1e-2


def test_queries_and_keys_themselves_are_torchscales():
    """Exponents count from the middle of the input, pairs are neighbours, and angles start at 0."""
    length = 300
    x, pos = content(length, 2), np.arange(length)
    theta = 10_000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM / 2))
    for sign, ours in zip((1, -1), rotate(XPOS, x, x, pos, pos, length), strict=True):
        size = ZETA[None, :] ** (sign * (pos - length // 2)[:, None] / 512)
        turn = np.exp(1j * pos[:, None] * theta[None, :])
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * (size * turn)[None, :, None, :]
        np.testing.assert_allclose(ours[..., 0::2], z.real, rtol=0, atol=3e-6)
        np.testing.assert_allclose(ours[..., 1::2], z.imag, rtol=0, atol=3e-6)


@pytest.mark.parametrize("context", [2048, 31_060, 131_072, 2**20])
def test_nothing_overflows_at_either_end_of_a_long_input(context):
    """Neither masked keys nor bfloat16 overflow, and near keys keep their weight."""
    pos = np.array([0, 1, context // 2, context - 2, context - 1])
    q, k = content(5, 3), content(5, 4)
    for dtype in (jnp.float32, jnp.bfloat16):
        turned_q, turned_k = rotate(XPOS, q, k, pos, pos, context, dtype)
        assert turned_q.dtype == turned_k.dtype == dtype
        turned_q, turned_k = (np.asarray(x, np.float32) for x in (turned_q, turned_k))
        assert np.all(np.isfinite(np.einsum("btnh,bsnh->nts", 100 * turned_q, 100 * turned_k)))
        for x in (turned_q, turned_k):
            size = np.abs(x[x != 0])
            assert np.min(size) > 1e-30  # far from subnormal numbers
    ours, paper = (f(q, k, pos, pos) for f in (lambda *a: logits(*a, context), published_logits))
    for i in range(5):
        np.testing.assert_allclose(ours[:, i, i], paper[:, i, i], rtol=0, atol=2e-5)
    with np.errstate(over="ignore"):
        uncentred = np.float32(ZETA[0]) ** np.float32(-(context - 1) / 512)
    assert np.isinf(uncentred) == (context > 2**16)


@pytest.mark.parametrize("context", [31_060, 131_072])
def test_far_blocks(context):
    """Limited rates equal those of decay_rates, and the published ones while float32 suffices."""
    q_pos, k_pos = context - 17 + np.arange(17), np.arange(0, context, 997)
    q, k = content(17, 5), content(len(k_pos), 6)
    causal = k_pos[None, :] <= q_pos[:, None]
    ours = logits(q, k, q_pos, k_pos, context)[:, causal]
    published = published_logits(q, k, q_pos, k_pos)[:, causal]
    limited = logits_by_rates(decay_rates(HEAD_DIM, 512.0, context), q, k, q_pos, k_pos)[:, causal]
    scale = np.max(np.abs(limited))
    np.testing.assert_allclose(ours, limited, rtol=0, atol=2e-5 * scale)
    as_published = np.max(np.abs(ours - published)) < 2e-5 * scale
    assert as_published == (context == 31_060)


def logits_by_rates(rate: np.ndarray, q: Any, k: Any, q_pos: Any, k_pos: Any) -> np.ndarray:
    theta = 10_000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM / 2))
    apart = (np.asarray(q_pos)[:, None] - np.asarray(k_pos)[None, :]).astype(np.float64)
    factor = np.exp(apart[..., None] * (-rate + 1j * theta))
    z_q, z_k = (x[0, ..., 0::2] + 1j * x[0, ..., 1::2] for x in (q, k))
    return np.einsum("tnk,snk,tsk->nts", z_q, z_k.conj(), factor).real


def test_rates_are_the_published_ones_up_to_31060_tokens():
    published = -np.log(ZETA) / 512
    np.testing.assert_allclose(decay_rates(HEAD_DIM, 512.0, 31_060), published, rtol=1e-14)
    limited = decay_rates(HEAD_DIM, 512.0, 31_100)
    assert limited[0] < published[0] and np.all(limited[1:] == published[1:])
    assert np.max(decay_rates(HEAD_DIM, 512.0, 131_072)) * 131_072 == pytest.approx(76)


@pytest.mark.parametrize(
    "changed, match",
    [({"head_dim": 7}, "even"), ({"scale_base": 0.0}, "XPos.scale_base"), ({"base": 1}, "XPos.b")],
)
def test_settings_that_make_no_sense(changed, match):
    size = {"num_heads": 2, "head_dim": 8, "train_length": 64, "hidden_size": 16}
    with pytest.raises(UserError, match=match):
        XPos(**{**size, **changed})


def test_resampled_positions_that_would_overflow_are_refused():
    """Within 64 tokens, the published decay reaches e^-76 at position 31,060."""
    XPOS.check_length(31_060, 64)
    XPOS.check_length(131_072, 131_072)  # the rates depend on the length of the input
    with pytest.raises(UserError, match="resampled positions below 31,06"):
        XPOS.check_length(32_000, 64)
    # Draws of the exponential distribution reach 16.6 times its mean.
    XPOS.check_length(ExponentialPositions().largest(1024), 64)
    with pytest.raises(UserError, match="resampled positions below 31,06"):
        XPOS.check_length(ExponentialPositions().largest(2048), 64)
