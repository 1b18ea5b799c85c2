"""Inputs of attention that see nothing or do not fit, its memory, and which implementation runs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.attention import Layout, Terms, Tokens, attend, choose_implementation, compiling_for
from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE

BATCH, HEADS, WIDTH = 2, 3, 4
FIVE = jnp.arange(5)[None]


def waves(q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    """Return a bias that depends on both positions, not only on their distance."""
    phase = (2 * q_pos[:, None, :, None] - k_pos[:, None, None, :]).astype(jnp.float32)
    return jnp.sin(jnp.float32([0.3, 0.7, 1.9])[None, :, None, None] * phase)


def content(length: int) -> dict[str, jax.Array]:
    shape = (3, BATCH, length, HEADS, WIDTH)
    q, k, v = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return {"q_BTNH": jnp.asarray(q), "k_BSNH": jnp.asarray(k), "v_BSNH": jnp.asarray(v)}


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_a_query_without_keys_gives_0_and_no_gradient(implementation):
    """A query in a segment without keys gets output 0, not the mean of all values."""
    arrays, pos = content(6), jnp.arange(6)[None]
    queries = Tokens(pos, jnp.array([[1, 1, 1, 1, 9, 1]]))
    keys = Tokens(pos, jnp.ones((1, 6), jnp.int32))

    def out(arrays):
        layout = Layout(implementation=implementation)
        return attend(**arrays, queries=queries, keys=keys, terms=Terms(waves), layout=layout)

    assert np.all(out(arrays)[:, 4] == 0) and np.all(out(arrays)[:, [0, 1, 2, 3, 5]] != 0)
    gradient = jax.grad(lambda arrays: jnp.sum(jnp.sin(out(arrays))))(arrays)
    assert all(np.all(np.isfinite(leaf)) for leaf in gradient.values())
    assert np.all(gradient["q_BTNH"][:, 4] == 0)
    layout = Layout(implementation=implementation)
    before = attend(*arrays.values(), Tokens(pos), Tokens(pos + 9), Terms(waves), layout=layout)
    assert np.all(before == 0), "queries before all keys"


@pytest.mark.parametrize(
    "changed, told",
    [
        (
            {"q_BTNH": jnp.ones((2, 3, 3, 4)), "layout": Layout(in_order=True)},
            "same tokens, but there are 3 queries and 5 keys",
        ),
        ({"k_BSNH": jnp.ones((2, 5, 1, 4))}, "q and k must have the same N and H"),
        ({"q_BTNH": jnp.ones((2, 5, 3, 8))}, "q and k must have the same N and H"),
        ({"q_BTNH": jnp.ones((2, 0, 3, 4))}, "four non-empty axes"),
        ({"q_BTNH": jnp.ones((2, 5, 3, 4), jnp.bfloat16)}, "same floating-point dtype"),
        ({"queries": Tokens(FIVE[:, :1])}, r"queries.pos has shape \(1, 1\): .* \[B or 1, 5\]"),
        ({"terms": Terms(None, jnp.ones((1, 4)))}, r"terms.logit_scale_BT has shape \(1, 4\)"),
        ({"keys": Tokens(FIVE, FIVE)}, "give segments to both queries and keys"),
        ({"queries": Tokens(FIVE, FIVE)}, "give segments to both queries and keys"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(changed, told):
    inputs: dict[str, Any] = {**content(5), "queries": Tokens(FIVE), "keys": Tokens(FIVE)}
    with pytest.raises(UserError, match=told):
        attend(**{**inputs, **changed})


def temporary_bytes(implementation: Any, length: int) -> int:
    """Return the bytes that the compiler allocates for a forward and backward pass with FIRE."""
    fire = FIRE(2, 8, train_length=length, hidden_size=16)
    params = jax.eval_shape(lambda rng: fire.prepare(fire.init(rng)), jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
    pos = jnp.arange(length)[None]

    def loss(params: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        terms = Terms(lambda q_pos, k_pos: fire.bias(params, q_pos, k_pos, length))
        layout = Layout(in_order=True, implementation=implementation)
        return jnp.sum(attend(q, k, v, Tokens(pos), Tokens(pos), terms, layout=layout))

    gradient = jax.grad(loss, argnums=(0, 1, 2, 3), allow_int=True)  # counts kinks
    memory = jax.jit(gradient).lower(params, x, x, x).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.ci
def test_blockwise_memory_is_a_fraction_of_dense():
    """At 2048 tokens in blocks of 64 rows; doubling the length doubles the memory."""
    dense, blocks = temporary_bytes("dense", 2048), temporary_bytes("blockwise", 2048)
    assert dense > 2048**2 * 32 * 4, "FIRE's hidden layer for all pairs of tokens"
    assert blocks < dense / 8
    assert temporary_bytes("blockwise", 4096) < 2.5 * blocks


def test_choice_of_implementation(monkeypatch):
    assert choose_implementation("auto", 64) == "dense"
    assert choose_implementation("auto", 65) == "blockwise"
    with compiling_for("tpu"):  # as preflight does on a machine without a TPU
        assert choose_implementation("auto", 128) == "tpu"
    assert choose_implementation("auto", 128) == "blockwise"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose_implementation("auto", 512) == "dense"
    assert choose_implementation("auto", 99_999) == "blockwise", "the kernel is the TPU's"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert choose_implementation("auto", 127) == "dense"
    assert choose_implementation("auto", 128) == "tpu"
    assert choose_implementation("dense", 99_999) == "dense"
    assert choose_implementation("blockwise", 2) == "blockwise"
    with pytest.raises(UserError, match="'flash': use one of auto, dense, blockwise, tpu"):
        two = Tokens(jnp.arange(2)[None])
        attend(*content(2).values(), two, two, layout=Layout(implementation="flash"))  # type: ignore[arg-type]
