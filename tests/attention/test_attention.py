"""Dense attention against numpy in float64, block-wise against dense attention, and their costs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.attention import Layout, Terms, Tokens, attend, choose_implementation, compiling_for
from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.dense import dense_attention
from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE

BATCH, HEADS, WIDTH = 2, 3, 4
FIVE = jnp.arange(5)[None]
FREQUENCIES = np.array([0.3, 0.7, 1.9], np.float32)


def waves(q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    """Return a bias that depends on both positions, not only on their distance."""
    phase = (2 * q_pos[:, :, None] - k_pos[:, None, :]).astype(jnp.float32)
    return jnp.sin(jnp.asarray(FREQUENCIES)[None, :, None, None] * phase[:, None])


def no_bias(q_pos: jax.Array, k_pos: jax.Array) -> None:
    return None


def content(length: int) -> dict[str, jax.Array]:
    shape = (3, BATCH, length, HEADS, WIDTH)
    q, k, v = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return {"q_BTNH": jnp.asarray(q), "k_BSNH": jnp.asarray(k), "v_BSNH": jnp.asarray(v)}


def per_example(length: int) -> jax.Array:
    """Return positions that start at a different value in each example."""
    return jnp.asarray(np.arange(length)[None] + np.array([[0], [5]]))


def in_numpy(arrays: dict[str, jax.Array], pos: Any, bias: Any, scale: Any) -> np.ndarray:
    """Return softmax attention in float64, computed query by query over the visible keys only."""
    q, k, v = (np.asarray(x, np.float64) for x in arrays.values())
    out = np.zeros_like(q)
    for b, t, n in np.ndindex(*q.shape[:3]):
        seen = pos[b] <= pos[b, t]
        logits = scale[b, t] * (k[b, seen, n] @ q[b, t, n]) / np.sqrt(WIDTH) + bias[b, n, t, seen]
        weights = np.exp(logits - logits.max())
        out[b, t, n] = weights / weights.sum() @ v[b, seen, n]
    return out


def test_dense_is_softmax_attention():
    """One scale multiplies q·k only, the other only the bias; later keys are masked."""
    arrays, pos = content(11), per_example(11)
    scale = np.linspace(0.5, 1.5, BATCH * 11, dtype=np.float32).reshape(BATCH, 11)
    scale, (q, k, v) = jnp.asarray(scale), arrays.values()

    def attention(bias_scale: jax.Array | None = None) -> jax.Array:
        terms = Terms(waves, scale, bias_scale)
        return dense_attention(q, k, v, Tokens(pos), Tokens(pos), terms)

    bias = np.asarray(waves(pos, pos), np.float64)
    expected = in_numpy(arrays, np.asarray(pos), bias, scale)
    np.testing.assert_allclose(attention(), expected, rtol=1e-5, atol=1e-6)
    scaled_bias = in_numpy(arrays, np.asarray(pos), bias * scale[:, ::-1][:, None, :, None], scale)
    ours = attention(scale[:, ::-1])
    np.testing.assert_allclose(ours, scaled_bias, rtol=1e-5, atol=1e-6)
    assert np.max(np.abs(ours - expected)) > 1e-2


def outputs_and_gradients(
    function: Any, arrays: Any, pos: jax.Array, bias: Any, scale: Any, segments: Any = None
) -> Any:
    def loss(arrays: Any, scale: Any) -> tuple[jax.Array, jax.Array]:
        terms = Terms(bias, scale, None if scale is None else 2 - scale)
        out = function(
            **arrays, queries=Tokens(pos, segments), keys=Tokens(pos, segments), terms=terms
        )
        return jnp.sum(jnp.sin(out)), out

    argnums = 0 if scale is None else (0, 1)
    return jax.jit(jax.grad(loss, argnums, has_aux=True))(arrays, scale)


@pytest.mark.parametrize("in_order", [pytest.param(False, marks=pytest.mark.ci), True])
@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.ci), True])
@pytest.mark.parametrize(
    "length, bias, scaled",
    [(16, waves, False), (21, waves, True), (85, no_bias, False), (3, waves, False)],
    ids=["whole_blocks", "last_in_part", "no_bias", "short"],
)
def test_blockwise_is_dense(length, bias, scaled, packed, in_order):
    """Values and the gradients to q, k, v and the scales agree, for blocks of 8 rows."""
    pos = jnp.arange(length)[None] if length == 16 else per_example(length)
    scale = jnp.linspace(0.5, 1.5, BATCH * length).reshape(BATCH, -1) if scaled else None
    blocks = functools.partial(blockwise_attention, block_size=8, in_order=in_order, groups=3)
    segments = documents(length) if packed else None
    both = [
        outputs_and_gradients(function, content(length), pos, bias, scale, segments)
        for function in (dense_attention, blocks)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *both)


def documents(length: int) -> jax.Array:
    """Return segment ids that differ between the examples; some segments have a single token."""
    ends = np.array([[length // 3, length // 3 + 1, length], [length // 2, length, length]])
    return jnp.asarray((np.arange(length)[None, :, None] >= ends[:, None, :]).sum(axis=2))


@pytest.mark.ci
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_packed_documents_are_separate_ones(implementation):
    """Attention over packed documents equals attention over each document separately.

    Positions restart in each document, so a bias of absolute positions must see the document's own.
    """
    lengths, arrays = (5, 1, 9), content(15)
    pos = jnp.concatenate([jnp.arange(length) for length in lengths])[None]
    segments = jnp.asarray(np.repeat([4, 2, 7], lengths))[None]

    def attended(arrays: dict[str, jax.Array], tokens: Tokens) -> jax.Array:
        layout = Layout(in_order=True, implementation=implementation)
        q, k, v = arrays.values()
        return attend(q, k, v, tokens, tokens, Terms(waves), layout=layout)

    packed, mixed = attended(arrays, Tokens(pos, segments)), attended(arrays, Tokens(pos))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        own = {name: array[:, rows] for name, array in arrays.items()}
        alone = attended(own, Tokens(pos[:, rows]))
        np.testing.assert_allclose(packed[:, rows], alone, rtol=1e-5, atol=1e-6)
        assert start == 0 or np.max(np.abs(mixed[:, rows] - alone)) > 1e-2
        start += length


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


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_a_query_before_all_keys_gives_0(implementation):
    arrays, far = content(4), jnp.arange(4)[None] + 9
    layout = Layout(implementation=implementation)
    out = attend(*arrays.values(), Tokens(far - 9), Tokens(far), Terms(waves), layout=layout)
    assert np.all(out == 0)


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


def test_blocks_above_the_diagonal_are_not_computed():
    """The compiler counts about half of the operations that attention over all keys takes."""
    x = jax.ShapeDtypeStruct((1, 512, 2, 64), jnp.float32)
    pos = jnp.arange(512)[None]

    def operations(in_order: bool) -> float:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            # One block per group: the compiler counts a loop once, so the count is complete.
            return blockwise_attention(
                *(q, k, v, Tokens(pos), Tokens(pos)), in_order=in_order,
                block_size=64 if in_order else 512, groups=8,
            ).sum()  # fmt: skip

        cost: Any = jax.jit(loss).lower(x, x, x).compile().cost_analysis()
        return cost["flops"]

    assert 0.5 < operations(True) / operations(False) < 0.6


def test_a_bias_of_the_block_is_seen():
    """The comparison above can fail: a bias that depends on its block's first row fails it."""

    def looks_at_block(q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
        return waves(q_pos - q_pos[:, :1], k_pos)

    blocks = functools.partial(blockwise_attention, block_size=8)
    (_, dense), (_, blockwise) = (
        outputs_and_gradients(function, content(21), per_example(21), looks_at_block, None)
        for function in (dense_attention, blocks)
    )
    np.testing.assert_allclose(dense[:, :8], blockwise[:, :8], rtol=1e-5, atol=1e-6)
    assert np.all(np.max(np.abs(dense - blockwise)[:, 8:], axis=(0, 2, 3)) > 1e-3)


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


def test_blockwise_sums_the_gradients_of_keys_and_values_in_float32():
    """Sixteen blocks add to these gradients; in bfloat16 the error would grow with their number."""
    arrays, pos = content(256), per_example(256)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays)

    def gradients(function: Any, arrays: Any) -> Any:
        found = outputs_and_gradients(function, arrays, pos, waves, None)[0]
        return {name: found[name].astype(jnp.float32) for name in ("k_BSNH", "v_BSNH")}

    exact = gradients(dense_attention, jax.tree.map(lambda x: x.astype(jnp.float32), half))
    dense = gradients(dense_attention, half)
    blocks = gradients(functools.partial(blockwise_attention, block_size=16), half)
    for name in exact:
        error = [float(jnp.linalg.norm(found[name] - exact[name])) for found in (dense, blocks)]
        assert error[1] < 1.1 * error[0], (name, error)
