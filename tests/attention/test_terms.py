"""Dense attention against NumPy in float64, with all terms and masks, and blockwise against dense.

The terms are a bias, decays, sinks, and scales of products and bias.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_attention import documents, restarting

from fire_lm.attention import Layout, Mask, Terms, Tokens, attend, seen
from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.cached import NewKeys, attend_cached, cached_keys
from fire_lm.attention.decay import cumulative_decay, extended, log_decay_between
from fire_lm.attention.dense import dense_attention
from fire_lm.errors import UserError

BATCH, HEADS, WIDTH, OF_VALUES = 2, 3, 8, 4


def arrays(length: int) -> dict[str, jax.Array]:
    """Return queries, keys, narrower values, gates, scales, a sink and weights of a loss."""
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(BATCH, length, HEADS, WIDTH)) for name in ("q", "k")}
    x |= {name: rng.normal(size=(BATCH, length, HEADS, OF_VALUES)) for name in ("v", "weights")}
    x["log_decay"] = -np.exp(rng.normal(-2, 1.5, size=(BATCH, length, HEADS)))
    x["scale"] = rng.uniform(0.5, 1.5, size=(BATCH, length))
    x["sink"] = rng.normal(size=HEADS)
    return {name: jnp.float32(array) for name, array in x.items()}


def bias(q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    slope = jnp.array([0.01, 0.1, -0.2])[None, :, None, None]
    phase = 2 * q_pos[:, None, :, None] - k_pos[:, None, None, :]
    return slope * jnp.sin(phase.astype(jnp.float32))


def in_float64(x: dict[str, Any], segment: Any, mask: Mask) -> np.ndarray:
    """Return attention with all terms, query by query, from the products of the gates."""
    q, k, v, gate, scale, sink = (
        np.asarray(x[name], np.float64) for name in ("q", "k", "v", "log_decay", "scale", "sink")
    )
    place, segment = np.asarray(restarting(segment)), np.asarray(segment)
    biases = np.asarray(bias(jnp.asarray(place), jnp.asarray(place)), np.float64)
    out = np.zeros(v.shape)
    for b, i, n in np.ndindex(*q.shape[:3]):
        weights, total = np.zeros(q.shape[1]), np.exp(sink[n])
        for j in range(q.shape[1]):
            distance = place[b, i] - place[b, j]
            if segment[b, i] != segment[b, j] or (mask.causal and distance < 0):
                continue
            if mask.window is not None and abs(distance) >= mask.window:
                continue
            if mask.chunk and place[b, i] // mask.chunk != place[b, j] // mask.chunk:
                continue
            decay = gate[b, j + 1 : i + 1, n].sum() - gate[b, i + 1 : j + 1, n].sum()
            logit = scale[b, i] * (q[b, i, n] @ k[b, j, n]) / np.sqrt(WIDTH)
            weights[j] = np.exp(logit + (2 - scale[b, i]) * biases[b, n, i, j] + decay)
        out[b, i, n] = weights / (total + weights.sum()) @ v[b, :, n]
    return out


def attended(
    function: Any, x: dict[str, Any], segment: Any, mask: Mask, bias: Any = bias, **options: Any
) -> jax.Array:
    pos = jnp.arange(x["q"].shape[1])[None] if segment is None else restarting(segment)
    decay = cumulative_decay(x["log_decay"], segment) if "log_decay" in x else None
    tokens = Tokens(pos, segment, decay=decay)
    scale = x.get("scale")
    terms = Terms(bias, scale, None if scale is None else 2 - scale, x.get("sink"))
    return function(x["q"], x["k"], x["v"], tokens, tokens, terms, mask, **options)


@functools.partial(jax.jit, static_argnames=("function", "mask", "packed", "bias"))
def with_gradients(
    function: Any, x: dict[str, jax.Array], mask: Mask, packed: bool, bias: Any = bias
) -> Any:
    def loss(x: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        length = x["q"].shape[1]
        out = attended(function, x, documents(length) if packed else None, mask, bias)
        return jnp.sum(x["weights"] * out.astype(jnp.float32)), out

    return jax.grad(loss, has_aux=True)(x)


OTHERS = [
    Mask(),
    Mask(window=1),
    Mask(chunk=4),
    Mask(causal=False),
    Mask(causal=False, window=3, chunk=7),
]
OTHER_MASKS = [pytest.param(mask, marks=pytest.mark.ci) for mask in OTHERS]


@pytest.mark.parametrize("mask", [Mask(window=5), *OTHER_MASKS], ids=str)
def test_dense_is_the_formula_with_every_term(mask):
    x, segment = arrays(13), documents(13)
    ours = attended(dense_attention, x, segment, mask)
    np.testing.assert_allclose(ours, in_float64(x, segment, mask), rtol=1e-5, atol=1e-6)


def test_the_formula_notices_each_term():
    """The comparison above can fail: without any one of the terms, it does."""
    x, segment = arrays(13), documents(13)
    wanted = in_float64(x, segment, Mask(window=5))
    for name in ("log_decay", "scale", "sink"):
        fewer = {other: array for other, array in x.items() if other != name}
        ours = attended(dense_attention, fewer, segment, Mask(window=5))
        assert np.max(np.abs(ours - wanted)) > 1e-2, name
    for mask in (Mask(), Mask(window=4), Mask(window=6), Mask(window=5, causal=False)):
        assert np.max(np.abs(attended(dense_attention, x, segment, mask) - wanted)) > 1e-2, mask


def without_bias(q_pos: jax.Array, k_pos: jax.Array) -> None:
    return None


SEVERAL = (Mask(), Mask(causal=False), Mask(causal=False, window=6), Mask(chunk=10))


@pytest.mark.parametrize(
    "mask, packed, length, in_order",
    [
        (Mask(window=9), True, 45, True),
        (Mask(), True, 85, True),
        (Mask(), True, 3, True),  # less than a block
        *(
            pytest.param(*case, marks=pytest.mark.ci)
            for case in (
                *((mask, packed, 45, True) for mask in SEVERAL for packed in (False, True)),
                *((Mask(window=window), True, 45, True) for window in (1, 8, 20, 30)),
                *((Mask(window=window), False, 45, True) for window in (1, 8, 20, 30)),
                (Mask(), False, 16, True),  # whole blocks
                *((Mask(), packed, length, False) for packed, length in ((True, 21), (False, 85))),
            )
        ),
    ],
    ids=str,
)
def test_blockwise_is_dense(mask, packed, length, in_order):
    """Values and all gradients agree, with spans of 16 rows and groups of one block of 8 rows.

    Inputs of 85 and 16 tokens have no terms.
    """
    blocks = functools.partial(blockwise_attention, block_size=8, groups=2, in_order=in_order)
    x, given = arrays(length), bias
    if length in (85, 16):
        x, given = {name: x[name] for name in ("q", "k", "v", "weights")}, without_bias
    (wanted, dense), (ours, out) = (
        with_gradients(function, x, mask, packed, given) for function in (dense_attention, blocks)
    )
    np.testing.assert_allclose(out, dense, rtol=1e-5, atol=1e-6)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(ours[name], gradient, rtol=1e-4, atol=2e-6, err_msg=name)


def test_a_bias_of_the_block_is_seen():
    """The comparison above can fail: a bias that depends on its block's first row fails it."""

    def looks_at_block(q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
        return bias(q_pos - q_pos[:, :1], k_pos)

    blocks = functools.partial(blockwise_attention, block_size=8)
    dense, blockwise = (
        attended(function, arrays(21), None, Mask(), looks_at_block)
        for function in (dense_attention, blocks)
    )
    np.testing.assert_allclose(dense[:, :8], blockwise[:, :8], rtol=1e-5, atol=1e-6)
    assert np.all(np.max(np.abs(dense - blockwise)[:, 8:], axis=(0, 2, 3)) > 1e-5)


def test_blockwise_sums_the_gradients_of_keys_and_values_in_float32():
    """Sixteen blocks add to these gradients; in bfloat16 the error would grow with their number."""
    x = arrays(256)
    half = {name: x[name].astype(jnp.bfloat16) for name in ("q", "k", "v")}
    exact, dense, blocks = (
        with_gradients(function, {**inputs, "weights": x["weights"]}, Mask(), False)[0]
        for function, inputs in (
            (dense_attention, jax.tree.map(lambda x: x.astype(jnp.float32), half)),
            (dense_attention, half),
            (functools.partial(blockwise_attention, block_size=16), half),
        )
    )
    for name in ("k", "v"):
        error = [
            jnp.linalg.norm(g[name].astype(jnp.float32) - exact[name]) for g in (dense, blocks)
        ]
        assert error[1] < 1.3 * error[0], (name, error)  # with sums in bfloat16, 1.5


CAUSAL = {"in_order": True, "block_size": 64, "groups": 8}
SHORT = {"in_order": True, "mask": Mask(window=64)}


@pytest.mark.parametrize(
    "some, all_, least, most",
    [
        (CAUSAL, {**CAUSAL, "in_order": False, "block_size": 512}, 0.5, 0.6),
        pytest.param(SHORT, {"in_order": True}, 0.4, 0.5, marks=pytest.mark.ci),
    ],
    ids=["above the diagonal", "beyond a window"],
)
def test_blocks_that_no_query_sees_are_not_computed(some, all_, least, most):
    """The compiler counts fewer operations, for 512 tokens."""
    x, tokens = jax.ShapeDtypeStruct((1, 512, 2, 64), jnp.float32), Tokens(jnp.arange(512)[None])

    def operations(options: dict[str, Any]) -> float:
        # One block per group and one span: the compiler counts a loop once.
        attention: Any = functools.partial(blockwise_attention, **options)
        lowered = jax.jit(lambda q, k, v: attention(q, k, v, tokens, tokens)).lower(x, x, x)
        cost: Any = lowered.compile().cost_analysis()
        return cost["flops"]

    assert least < operations(some) / operations(all_) < most


@pytest.fixture
def rows_of_blocks(monkeypatch) -> Any:
    """Return a function that lists the rows of the blocks of a program, which is not run."""
    rows: list[int] = []

    def recorded(q: jax.Array, *inputs: Any) -> jax.Array:
        rows.append(q.shape[1])
        return dense_attention(q, *inputs)

    monkeypatch.setattr("fire_lm.attention.blockwise.dense_attention", recorded)

    def of(length: int, **options: Any) -> list[int]:
        x, tokens = jnp.zeros((1, length, 1, 8)), Tokens(jnp.arange(length)[None])
        jax.eval_shape(lambda x: blockwise_attention(x, x, x, tokens, tokens, **options), x)
        return rows

    return of


@pytest.mark.parametrize("length, blocks", [(128, 2), (576, 5), (1024, 8)])
def test_short_inputs_are_not_padded_to_long_spans(rows_of_blocks, length, blocks):
    """576 rows are two spans of five blocks of 64, of which the program contains one."""
    assert rows_of_blocks(length, mask=Mask(window=32), in_order=True) == [64] * blocks


@pytest.mark.parametrize("length, size", [(40, 40), (64, 64), (80, 40), (130, 48), (1000, 64)])
def test_blocks_have_equal_rows_so_that_few_are_padding(rows_of_blocks, length, size):
    assert rows_of_blocks(length) == [size]


@pytest.mark.parametrize("name", ["window", "chunk"])
@pytest.mark.parametrize("tokens", [0, -3, 2.0, True])
def test_masks_are_of_positive_numbers_of_tokens(name, tokens):
    with pytest.raises(UserError, match=f"{name} is {tokens}: it must be a positive integer"):
        Mask(**{name: tokens})


def test_a_window_counts_places_not_positions():
    """Drawn and interpolated positions see the same keys as plain ones; floats need places."""
    place = jnp.arange(6)[None]
    plain = Tokens(place)
    wanted = np.tri(6, dtype=bool) & ~np.tri(6, k=-3, dtype=bool)
    for pos in (place, 5 * place, place / 4):
        tokens = plain._replace(pos=pos, place=place)
        np.testing.assert_array_equal(seen(tokens, tokens, Mask(window=3))[0], wanted)
    q = jnp.ones((1, 6, 1, 8))
    with pytest.raises(UserError, match="as queries.place"):
        attend(q, q, q, Tokens(place / 4), plain, mask=Mask(window=3))


@pytest.mark.parametrize(
    "implementation", [pytest.param("dense", marks=pytest.mark.ci), "blockwise"]
)
def test_a_window_of_the_whole_input_is_none(implementation):
    x = arrays(80)
    del x["log_decay"]  # it would forget the first key
    assert Mask(True, window=80, chunk=90).within(80) == Mask()
    assert Mask(window=79, chunk=81).within(80) == Mask(window=79)
    layout = Layout(in_order=True, implementation=implementation)
    none, whole, less = (
        attended(attend, x, None, mask, layout=layout)
        for mask in (Mask(), Mask(window=80), Mask(window=79))
    )
    np.testing.assert_array_equal(none, whole)
    assert np.any(none != less)


def by_steps(gates: jax.Array) -> Any:
    """Return the sums by `later`, which decoding uses for each token."""
    start = jax.tree.map(lambda x: x[:, -1], cumulative_decay(jnp.zeros((1, 1, 1))))

    def step(decay: Any, gate: jax.Array) -> Any:
        decay = extended(decay, gate)
        return decay, decay

    sums = jax.jit(lambda gates: jax.lax.scan(step, start, gates)[1])(gates[0, :, 0])
    return jax.tree.map(lambda x: x.reshape(1, -1, 1), sums)


@pytest.mark.parametrize("function", [cumulative_decay, by_steps])
def test_decays_are_exact_at_long_lengths(function):
    """At 131,072 tokens that halve the weights, and where a query forgets little of a long text.

    A float32 cumsum is wrong by more than a hundred times as much.
    """
    rng = np.random.default_rng(0)
    gates = np.log(rng.uniform(0.3, 0.7, size=131_072)).astype(np.float32)
    gates[-3000:] *= 1e-3
    exact, plain = np.cumsum(gates.astype(np.float64)), np.cumsum(gates)
    sums = function(jnp.asarray(gates)[None, :, None])
    for i, j in ((131_071, 128_072), (128_572, 128_022), (90_000, 89_990)):
        query, key = (jax.tree.map(lambda x, at=at: x[:, at : at + 1], sums) for at in (i, j))
        ours = log_decay_between(query, key).item()
        error = [abs(x - (exact[i] - exact[j])) for x in (ours, plain[i] - plain[j])]
        assert error[0] < 2e-5 and error[1] > 1e-3, (i, j, error)


def test_gates_of_other_documents_change_nothing():
    """Not by rounding either, and they receive no gradient; nor does a document's first gate."""
    segment = jnp.asarray(np.repeat([0, 1, 2], [100, 160, 40]))[None]
    gates = -jnp.abs(jax.random.normal(jax.random.key(0), (1, 300, 2)))

    @jax.jit
    def own(gates: jax.Array) -> jax.Array:
        decay = jax.tree.map(lambda x: x[:, 100:260], cumulative_decay(gates, segment))
        return log_decay_between(decay, decay)

    others = jnp.where((segment == 1)[..., None], gates, 5 * gates)
    first = gates.at[:, 100].set(-9.0)
    for changed in (others, first):
        np.testing.assert_array_equal(own(gates), own(changed))
    assert np.any(own(gates) != own(gates.at[:, 130].add(-0.1)))
    gradient = jax.grad(lambda gates: jnp.sum(jnp.cos(own(gates))))(gates)[0]
    assert np.all(gradient[:101] == 0) and np.all(gradient[260:] == 0)
    assert np.all(gradient[102:260] != 0)


def test_a_step_subtracts_whole_numbers_exactly():
    """What a long text has forgotten does not round the decay between its last tokens."""
    rng = np.random.default_rng(0)
    k, v = jnp.float32(rng.normal(size=(2, 1, 1, 6, 2, 8)))  # [L, B, P, N, H]
    log_decay = jnp.float32(-rng.uniform(size=(1, 6, 2)))
    query, none = jnp.float32(rng.normal(size=(1, 3, 2, 8))), jnp.float32(np.zeros((1, 3, 2)))

    def step(forgotten: int) -> jax.Array:
        decay = cumulative_decay(log_decay)
        decay = decay._replace(whole=decay.whole - forgotten)
        layers = jax.tree.map(lambda x: x[None], decay)
        prompt, own, keys = cached_keys(k, v, layers, jnp.array([5]), jnp.arange(9), 4, 3)
        prompt, own = jax.tree.map(lambda x: x[0], (prompt, own))
        new = NewKeys(query, query, extended(own.last_BKN, none - 0.3))
        return attend_cached(query, new, prompt, own, Tokens(jnp.array([[5]])), keys)

    np.testing.assert_array_equal(jax.jit(step)(0), jax.jit(step)(95_000))
