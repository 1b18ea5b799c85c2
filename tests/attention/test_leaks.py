"""Tokens that a query does not see change nothing, in any implementation: no value, no gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_attention import LENGTH, content, documents, encoding_of, restarting

from fire_lm.attention import Layout, Mask, TabulatedBias, Terms, Tokens, attend, seen
from fire_lm.attention.decay import cumulative_decay

SHORT = Mask(window=70)


@functools.partial(jax.jit, static_argnames=("implementation", "mask", "applied"))
def row_and_gradient(
    x: dict[str, jax.Array], query: jax.Array, implementation: Any, mask: Mask, applied: Mask
) -> Any:
    """Return a query's output in both rows, its gradient, and which tokens it sees under `mask`."""
    segment = documents()
    pos, encoding = restarting(segment), encoding_of("alibi")
    params = encoding.init(jax.random.key(1))
    tables = encoding.common_bias(params, LENGTH, LENGTH)
    assert tables is not None

    def row(x: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tokens = Tokens(pos, segment, decay=cumulative_decay(x["log_decay"], segment))
        bias = TabulatedBias(lambda q, k: encoding.bias(params, q, k, LENGTH), tables)
        layout = Layout(in_order=True, consecutive=True, implementation=implementation)
        out = attend(x["q"], x["k"], x["v"], tokens, tokens, Terms(bias), applied, layout)
        return jnp.sum(jnp.sin(out[:, query])), out[:, query]

    gradient, out = jax.grad(row, has_aux=True)(x)
    return out, gradient, seen(Tokens(pos, segment), Tokens(pos, segment), mask)[:, query]


def check(implementation: str, mask: Mask, applied: Mask) -> None:
    q, k, v, _ = content()
    rng = np.random.default_rng(1)
    log_decay = jnp.float32(-0.05 * rng.uniform(size=q.shape[:3]))
    x = {"q": q, "k": k, "v": v, "log_decay": log_decay}
    for query in (99, 100, 230, 270):  # at the edges of documents, and in the middle
        ask = functools.partial(row_and_gradient, query=jnp.int32(query))
        given: Any = dict(implementation=implementation, mask=mask, applied=applied)
        out, gradient, sees = ask(x, **given)
        for name in ("k", "v"):
            slope = np.max(np.abs(gradient[name]), axis=(2, 3))
            assert not np.any(slope[~sees]), name
        assert np.all(slope[sees] > 0)  # of the values, because a single key has no effect
        others = {name: jnp.where(sees[:, :, None, None], x[name], -x[name]) for name in ("k", "v")}
        found, _, _ = ask({**x, **others}, **given)
        np.testing.assert_array_equal(out, found)


@pytest.mark.ci
@pytest.mark.parametrize(
    "implementation, mask",
    [
        ("dense", Mask(chunk=40)),
        ("blockwise", SHORT),
        ("blockwise", Mask(chunk=40)),
        ("blockwise", Mask(causal=False, window=30)),
        ("tpu", SHORT),
    ],
    ids=str,
)
def test_unseen_tokens_change_nothing(implementation, mask):
    check(implementation, mask, mask)


@pytest.mark.ci
def test_a_leak_is_noticed():
    for applied in (Mask(window=71), Mask(window=69), Mask(), Mask(causal=False, window=70)):
        with pytest.raises(AssertionError):
            check("dense", SHORT, applied)
