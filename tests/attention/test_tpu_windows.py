"""The TPU kernels with windows, decays and sinks, interpreted on a CPU, against dense attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_attention import (
    BATCH,
    HEADS,
    LENGTH,
    assert_close,
    content,
    dense_with,
    documents,
    encoding_of,
    kernel_with,
    outputs_and_gradients,
    restarting,
)

from fire_lm.attention import Mask, Terms, Tokens
from fire_lm.attention.decay import cumulative_decay
from fire_lm.attention.dense import dense_attention
from fire_lm.attention.tpu import tpu_attention
from fire_lm.attention.tpu.decays import KeyDecays, rows_of_ones
from fire_lm.attention.tpu.pieces import Place, pieces, places
from fire_lm.attention.tpu.schedule import Blocks, choose_blocks, tiles


def errors(name: str, window: int, packed: bool, block: int, own_window: int | None = None) -> None:
    """Compare the kernel, whose window may differ, with dense attention."""
    encoding = encoding_of(name)
    params = encoding.init(jax.random.key(1))
    own = {"segment": documents(), "pos": restarting(documents())} if packed else {}
    kernel = kernel_with(encoding, block=block, window=own_window or window, **own)
    (ours, out), (wanted, oracle) = (
        outputs_and_gradients(function, params, content())
        for function in (kernel, dense_with(encoding, window=window, **own))
    )
    np.testing.assert_allclose(out, oracle, atol=1e-5)
    assert_close(ours, wanted, 1e-4)


@pytest.mark.parametrize(
    "name, window, packed, block",
    [
        *(
            pytest.param(*case, marks=pytest.mark.ci)
            for case in (
                ("nope", 128, True, 128),
                ("nope", 1, False, 128),
                ("nope", 127, False, 256),
                ("nope", 257, False, 128),
                ("fire", 127, False, 256),
                ("t5", 129, True, 128),
            )
        ),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("fire", 1, False, 256),
                ("fire", 128, False, 128),
                ("fire_g", 129, True, 128),
                ("t5", 1, False, 256),
                ("kerple", 128, False, 256),
                ("alibi", 129, False, 128),
            )
        ),
    ],
)
def test_kernels_with_a_window_are_dense_attention(name, window, packed, block):
    """Outputs agree to 1e-5 and gradients to 1e-4, at and beside the edges of strips and tiles."""
    errors(name, window, packed, block)


@pytest.mark.ci
def test_a_window_of_another_size_is_noticed():
    """The comparison above can fail: a window that is wrong by one token does not pass."""
    for own in (127, 129):
        with pytest.raises(AssertionError):
            errors("nope", 128, False, 128, own_window=own)


@pytest.mark.parametrize(
    "tokens",
    [pytest.param(128, marks=pytest.mark.ci), 256, pytest.param(512, marks=pytest.mark.ci)],
)
@pytest.mark.parametrize("window", [None, 1, 2, 127, 128, 129, 257, 258, 500, 513, 514, 1023])
def test_pieces_cover_what_queries_see_and_mask_the_rest(tokens, window):
    """Each query and key that it sees are in one piece, and no strip of a piece sees nothing."""
    blocks = Blocks(tokens, 1, 1024, window=window)
    place = np.arange(1024)
    apart = place[None, :] - place[:, None]  # [key, query]
    wanted = (apart >= 0) & (apart < (window or 1024))
    found = np.zeros((1024, 1024), int)
    for query_block, key_block in tiles(blocks, "by_query").T:
        (here,) = (p for p in places(blocks) if p.holds(query_block, key_block))
        tile = found[key_block * tokens :, query_block * tokens :]
        for piece in pieces(blocks, here):
            shape = (piece.keys.stop - piece.keys.start, piece.queries.stop - piece.queries.start)
            unmasked = np.asarray(piece.masked(jnp.zeros(shape))) == 0
            tile[piece.keys, piece.queries] += unmasked
            for start in range(0, shape[1], 128):
                assert np.any(unmasked[:, start : start + 128]), (here, piece)
    np.testing.assert_array_equal(found, wanted)
    assert sorted(map(tuple, tiles(blocks, "by_query").T)) == sorted(
        map(tuple, tiles(blocks, "by_key").T)
    )


def test_a_window_of_the_whole_input_is_none():
    half = jnp.dtype(jnp.bfloat16)
    assert choose_blocks(2048, 8, 64, half, None, window=2048) == Blocks(512, 8, 2048)
    short = choose_blocks(2048, 8, 64, half, None, window=2047)
    assert short == Blocks(512, 8, 2048, window=2047)
    assert short.kernel_name("forward") == "fire_lm_attention_forward_window_2047"
    assert places(Blocks(512, 8, 2048)) == [
        Place("diagonal", 0, 0, True),
        Place("below", 1, None, False),
    ]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_of_decays_have_the_digits_of_float32(dtype):
    """Also after a million tokens, and if the compiler may keep more digits than bfloat16 has."""
    blocks = Blocks(128, 1, 384)
    rng = np.random.default_rng(0)
    whole = -1e6 - np.cumsum(rng.integers(0, 3, size=384))
    decay = np.stack([whole, rng.uniform(-1, 1, size=384)]).astype(np.float32)[None, None]
    of = jax.jit(KeyDecays.of, static_argnums=(1, 2))
    rows, first = of(jnp.asarray(decay), blocks, jnp.dtype(dtype))
    assert rows.dtype == dtype and rows.shape == (1, 1, rows_of_ones(dtype), 384)
    exact = decay[0, 0].astype(np.float64).sum(axis=0)
    first = np.asarray(first[0, 0], np.float64)
    np.testing.assert_array_equal(first.sum(axis=0), exact[::128])
    found = np.asarray(rows[0, 0].astype(jnp.float32), np.float64).sum(axis=0)
    wanted = np.log2(np.e) * (np.repeat(exact[::128], 128) - exact)
    np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=1e-6)
    assert np.max(np.abs(wanted)) > 100


@functools.partial(jax.jit, static_argnames=("kernel", "name", "window", "packed"))
def with_all_terms(kernel: bool, name: str, window: int | None, packed: bool, x: Any) -> Any:
    """Return attention with decays, a sink and an encoding's bias, and its gradients."""
    encoding = encoding_of(name)
    params = encoding.init(jax.random.key(1))
    segment = documents() if packed else None
    pos = jnp.arange(LENGTH)[None] if segment is None else restarting(segment)

    def loss(x: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        decay = cumulative_decay(x["log_decay"], segment)
        q, k, v, weights = x["qkv"]
        if kernel:
            tables = encoding.common_bias(params, LENGTH, LENGTH)
            own: dict[str, Any] = dict(segment_BT=segment, pos_BT=None if segment is None else pos)
            own |= dict(decay=decay, sink_N=x["sink"], window=window, block_size=128)
            out = tpu_attention(q, k, v, bias=tables, **own)
        else:
            tokens = Tokens(pos, segment, decay=decay)
            terms = Terms(lambda q, k: encoding.bias(params, q, k, LENGTH), sink_N=x["sink"])
            mask = Mask(window=window)
            out = dense_attention(q, k, v, tokens, tokens, terms, mask)
        return jnp.sum(out * weights), out

    return jax.grad(loss, has_aux=True)(x)


@pytest.mark.parametrize(
    "name, window, packed, strength",
    [
        pytest.param("nope", 150, True, 1.0, marks=pytest.mark.ci),
        pytest.param("nope", None, False, 30.0, marks=pytest.mark.ci),  # c reaches some -4000
        pytest.param("fire", 150, True, 1.0, marks=pytest.mark.ci),
    ],
)
def test_kernels_add_decays_and_sinks_as_dense_attention_does(name, window, packed, strength):
    rng = np.random.default_rng(2)
    decay = -strength * np.exp(rng.normal(-2, 1.5, size=(BATCH, LENGTH, HEADS)))
    x = {"qkv": content(), "log_decay": jnp.float32(decay), "sink": jnp.array([1.5, -0.5])}
    (wanted, oracle), (ours, out) = (
        with_all_terms(kernel, name, window, packed, x) for kernel in (False, True)
    )
    # A logit is rounded relative to the decay within a tile, of some 50 * strength.
    np.testing.assert_allclose(out, oracle, atol=1e-5 * strength)
    assert_close(ours, wanted, 1e-4 * strength)
    for term in ("log_decay", "sink"):  # both terms act
        _, less = with_all_terms(True, name, window, packed, {**x, term: 0 * x[term]})
        assert np.max(np.abs(less - oracle)) > 1e-2, term


@pytest.mark.ci
def test_later_gates_change_nothing_not_even_by_rounding():
    """A reference token in the middle of a block would."""
    rng = np.random.default_rng(0)
    q, k, v = jnp.float32(rng.normal(size=(3, 1, 256, 1, 64)))
    decay = -0.1 * np.abs(rng.normal(size=(1, 256, 1)))
    later = np.where(np.arange(256)[:, None] < 100, decay, 30 * decay)
    attend = jax.jit(
        lambda decay: tpu_attention(q, k, v, bias=None, decay=cumulative_decay(decay, None))
    )
    out, changed = (np.asarray(attend(jnp.float32(x))) for x in (decay, later))
    np.testing.assert_array_equal(changed[:, :100], out[:, :100])
    assert np.max(np.abs(changed[:, 100:] - out[:, 100:])) > 1e-2
