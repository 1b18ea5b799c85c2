"""Properties that every encoding of configs/positions/ must have; a new gin file joins by itself.

Each property is a function `has_...` that fails on an encoding without it. It is tried on all
configured encodings (variants in the ci tier), and once on a broken one (broken_encodings.py) to
show that it bites.
The equations themselves: test_fire.py, test_alibi.py, test_rope.py.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import broken_encodings as broken
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import CLASSES_THEN_VARIANTS, CONFIGS

from fire_lm import verbs
from fire_lm.attention import attend
from fire_lm.config.program import Place
from fire_lm.models import Decoder, ModelSize
from fire_lm.positions import PositionalEncoding

SIZE = ModelSize(4, hidden_size=96, num_heads=12, head_dim=8, mlp_size=96, init_std=0.1)
LENGTH = 64  # training length

every_encoding = pytest.mark.parametrize("name", CLASSES_THEN_VARIANTS)


@functools.cache
def configured(name: str) -> Decoder:
    """The decoder that configs/positions/NAME.gin gives, small."""
    files = [str(CONFIGS / "runs/quickstart.gin"), str(CONFIGS / f"positions/{name}.gin")]
    config = verbs.load_config(files)
    assert config.macro("ENCODING") == name, "the sweep's tables name runs by this macro"
    changed: dict[str, Any] = {"size": SIZE, "vocab_size": 32, "train_length": LENGTH}
    return config.call_place(Place((), "build_decoder"), (), changed)


def decoder(encoding: PositionalEncoding) -> Decoder:
    embeds = type(encoding).embed is not PositionalEncoding.embed  # there is one embedding
    return Decoder(SIZE, (encoding,), vocab_size=32, share_position=embeds)


def content(length: int) -> tuple[jax.Array, ...]:
    """Some q, k, v `[1, length, N, H]`."""
    shape = (3, 1, length, SIZE.num_heads, SIZE.head_dim)
    return tuple(jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32))


def logits(
    encoding: PositionalEncoding, params: Any, q: jax.Array, k: jax.Array, q_pos: Any, k_pos: Any
) -> jax.Array:
    """q·k and bias `[B, N, T, S]` as attention adds them, before the mask."""
    q_pos, k_pos = jnp.asarray(q_pos, jnp.int32)[None], jnp.asarray(k_pos, jnp.int32)[None]
    q, k = encoding.rotate(params, q, k, q_pos, k_pos, k_pos.shape[1])
    products = jnp.einsum("BTNH,BSNH->BNTS", q, k, preferred_element_type=jnp.float32)
    bias = encoding.bias(params, q_pos, k_pos, k_pos.shape[1])
    return products if bias is None else products + bias


def init(encoding: PositionalEncoding) -> Any:
    return encoding.init(jax.random.key(0))


def quick_jit(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """`jax.jit` for big functions that run once: compiles quickly, to slow code."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0}, **settings)


def has_finite_values_far_out(encoding: PositionalEncoding) -> None:
    """Up to 16 times the training length, also where attention will mask."""
    far = 16 * LENGTH
    q, k, _ = content(far)
    queries = np.array([0, 1, LENGTH - 1, LENGTH, 2 * LENGTH, far - 1])
    out = logits(encoding, init(encoding), q[:, queries], k, queries, np.arange(far))
    assert np.all(np.isfinite(out))


def largest_error(found: Any, expected: Any, floor: float = 0.0) -> float:
    """Over the leaves, relative to each one's largest: what cancels leaves its rounding behind.

    NaN if any is: Python's `max` would lose it.
    """

    def error(found: jax.Array, expected: jax.Array) -> float:
        return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), floor))

    errors = jax.tree.leaves(jax.tree.map(error, found, expected))
    return float(np.max(errors, initial=0.0))


def has_the_same_values_in_blocks(encoding: PositionalEncoding) -> None:
    """Values, and gradients to q, k, v and the encoding's parameters, of every implementation."""
    pos = jnp.arange(300)[None]

    def loss(inputs: Any, implementation: Any, in_order: bool) -> tuple[jax.Array, jax.Array]:
        params, q, k, v = inputs
        params = encoding.prepare(params)
        q, k = encoding.rotate(params, q, k, pos, pos, 300)
        out = attend(
            *(q, k, v),
            q_pos_BT=pos,
            k_pos_BS=pos,
            bias=lambda q_pos, k_pos: encoding.bias(params, q_pos, k_pos, 300),
            in_order=in_order,
            implementation=implementation,
        )
        return jnp.sum(jnp.sin(out)), out

    inputs = (init(encoding), *content(300))
    gradient = jax.grad(loss, has_aux=True)
    dense, *others = (
        quick_jit(functools.partial(gradient, implementation=name, in_order=in_order))(inputs)
        for name, in_order in (("dense", False), ("blockwise", False), ("blockwise", True))
    )
    (dense_params, *dense_qkv), dense_out = dense
    for (in_params, *in_qkv), out in others:
        assert largest_error(out, dense_out) < 1e-5
        assert largest_error(in_qkv, dense_qkv) < 1e-4
        # All of a gradient can cancel: no softmax sees FIRE's last bias.
        assert largest_error(in_params, dense_params, floor=1.0) < 1e-4


def has_no_view_of_the_future(encoding: PositionalEncoding) -> None:
    """Gradient of the logit of id 0 at every position to the embeddings of distinct tokens."""
    length = 10
    tokens, pos = jnp.arange(1, length + 1)[None], jnp.arange(length)[None]
    model = decoder(encoding)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, pos)["params"]
    rng = np.random.default_rng(0)  # compiling an initialisation takes longer
    params = jax.tree.map(lambda leaf: jnp.float32(rng.normal(0, 0.1, leaf.shape)), shapes)

    def logits_of_0(table: jax.Array) -> jax.Array:
        out = model.apply({"params": {**params, "embedding": table}}, tokens, pos)
        assert isinstance(out, jax.Array)
        return out[0, :, 0]

    jacobian = quick_jit(jax.jacrev(logits_of_0))(params["embedding"])  # [T, V, D]
    seen = np.any(np.asarray(jacobian)[:, 1 : length + 1] != 0, axis=-1)
    np.testing.assert_array_equal(seen, np.tri(length, dtype=bool))


def has_translation_invariance(encoding: PositionalEncoding) -> None:
    """All positions moved by 1024, beyond every threshold; of embeddings as they reach layers."""
    params, x_BTD = init(encoding), content(LENGTH)[0].reshape(1, LENGTH, -1)

    def at(pos: np.ndarray) -> jax.Array:
        embedded_BTD = encoding.embed(params, x_BTD, jnp.asarray(pos)[None])
        q = embedded_BTD.reshape(1, LENGTH, SIZE.num_heads, SIZE.head_dim)
        return logits(encoding, params, q, q, pos, pos)

    here, there = at(np.arange(LENGTH)), at(np.arange(LENGTH) + 1024)
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-3)


def has_all_bits_of_positions(encoding: PositionalEncoding) -> None:
    """In a bfloat16 model 256, 257, 4096 and 4097 are four distances and four positions."""
    params = init(encoding)
    apart = np.array([256, 257, 4096, 4097])
    q_pos, k_pos = jnp.array([[5000]]), jnp.asarray(5000 - apart)[None]
    bias = None  # buckets hold many distances each
    if not encoding.integer_positions:
        bias = encoding.bias(params, q_pos, k_pos, 5001)
    if bias is not None:
        assert bias.dtype == jnp.float32
        assert len({tuple(row) for row in np.asarray(bias)[0, :, 0].T.tolist()}) == 4
    same = jnp.ones((1, 4, SIZE.num_heads, SIZE.head_dim), jnp.bfloat16)
    rotated, _ = encoding.rotate(params, same, same, jnp.asarray(apart)[None], q_pos, 5001)
    if np.any(rotated != same):
        assert rotated.dtype == jnp.bfloat16
        assert len({tuple(row.ravel().tolist()) for row in np.asarray(rotated)[0]}) == 4


def has_finite_gradients_at_distance_0(encoding: PositionalEncoding) -> None:
    """To parameters and contents, at position 0 and at the others' own positions."""
    q, k, _ = content(3)

    def total(params: Any, q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(logits(encoding, params, q, k, np.arange(3), np.arange(3))))

    gradient = quick_jit(jax.grad(total, argnums=(0, 1, 2)))(init(encoding), q, k)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def has_equal_decode_rows(encoding: PositionalEncoding) -> None:
    """One query against a cache gives, bit for bit, its row of the full matrix."""
    params, pos = init(encoding), jnp.arange(90)[None]
    q, k, _ = content(90)
    full_bias = encoding.bias(params, pos, pos, 90)
    full_q, _ = encoding.rotate(params, q, k, pos, pos, 90)
    for row in (0, 1, 16, 50, 89):
        at = pos[:, row : row + 1]
        one_q, _ = encoding.rotate(params, q[:, row : row + 1], k, at, pos, 90)
        np.testing.assert_array_equal(one_q, full_q[:, row : row + 1])
        one_bias = encoding.bias(params, at, pos, 90)
        if one_bias is not None and full_bias is not None:
            np.testing.assert_array_equal(one_bias, full_bias[:, :, row : row + 1])


def has_equal_values_in_packed_documents(encoding: PositionalEncoding) -> None:
    """Positions that restart give each document the values it has alone; also per example."""
    params, lengths = init(encoding), (40, 50)
    pos = np.concatenate([np.arange(length) for length in lengths])
    q_pos = jnp.asarray(np.stack([pos, pos[::-1]]), jnp.int32)  # two examples, other positions
    q, k, _ = content(90)
    q, k = (jnp.concatenate([x, x[:, ::-1]]) for x in (q, k))
    packed_q, packed_k = encoding.rotate(params, q, k, q_pos, q_pos, 90)
    packed_bias = encoding.bias(params, q_pos, q_pos, 90)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        alone = jnp.arange(length)[None]
        alone_q, alone_k = encoding.rotate(params, q[:1, rows], k[:1, rows], alone, alone, 90)
        for packed, separate in ((packed_q, alone_q), (packed_k, alone_k)):
            np.testing.assert_allclose(packed[:1, rows], separate, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(packed[1:, ::-1][:, rows], separate, rtol=1e-6, atol=1e-6)
        bias = encoding.bias(params, alone, alone, 90)
        if bias is not None and packed_bias is not None:
            first, second = jnp.broadcast_to(packed_bias, (2, *packed_bias.shape[1:]))
            for packed in (first, second[:, ::-1, ::-1]):
                np.testing.assert_allclose(packed[:, rows, rows], bias[0], rtol=1e-5, atol=1e-5)
        start += length


def has_the_common_form(encoding: PositionalEncoding) -> None:
    """Where it offers tables, they are its bias, also in attention, with its gradients."""
    raw, length = init(encoding), 100
    pos = jnp.arange(length)[None]
    bias = encoding.bias(raw, pos, pos, length)
    form = encoding.common_bias(raw, length, length)
    assert (form is None) == (bias is None or not has_tables(encoding))
    if form is None or bias is None:
        return
    causal = np.tri(length, dtype=bool)
    scale = max(1.0, float(np.max(np.abs(bias[0][:, causal]))))
    tables = np.asarray(form(pos, pos))
    np.testing.assert_allclose(tables[..., causal], bias[..., causal], atol=1e-5 * scale)
    far = form(pos + 1, pos)  # beyond the last row: told, not taken from another
    assert np.all(np.isnan(far[:, :, -1])) and not np.any(np.isnan(far[:, :, :-1]))

    def loss(params: Any, tables: bool) -> jax.Array:
        form = encoding.common_bias(params, length, length)
        own = functools.partial(encoding.bias, params, context_length=length)
        chosen: Any = form if tables else lambda q_pos, k_pos: own(q_pos, k_pos)
        out = attend(
            *content(length), q_pos_BT=pos, k_pos_BS=pos, bias=chosen, implementation="dense"
        )
        return jnp.sum(jnp.sin(out))

    gradient = quick_jit(jax.grad(loss), static_argnames="tables")
    ours, own = (gradient(raw, tables=tables) for tables in (True, False))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-3), ours, own)


def has_tables(encoding: PositionalEncoding) -> bool:
    """All but FIRE with other activations than ReLU between its layers."""
    activation = getattr(encoding, "activation", "relu")
    return activation == "relu" and not getattr(encoding, "final_activation", False)


def has_no_hidden_state(encoding: PositionalEncoding) -> None:
    """Compiled and eager calls agree."""
    params, pos = init(encoding), np.arange(40)
    q, k, _ = content(40)
    function = functools.partial(logits, encoding, q_pos=pos, k_pos=pos)
    compiled = jax.jit(function)(params, q, k)
    np.testing.assert_allclose(function(params, q, k), compiled, rtol=1e-5, atol=1e-5)


def has_the_documented_size(encoding: PositionalEncoding) -> None:
    """The docstring's "Parameters ...: none" or numbers for 12 heads, as the models here have."""
    text = " ".join((type(encoding).__doc__ or "").split())
    sentence = re.search(r"Parameters[^:]*: (none|[\d,]+)([^.]*)", text)
    assert sentence, f"the docstring of {type(encoding).__name__} lacks 'Parameters...: N'"
    documented = {int(n) for n in re.findall(r"\b\d{2,}\b", sentence[0].replace("12 heads", ""))}
    size = sum(leaf.size for leaf in jax.tree.leaves(init(encoding)))
    assert size in (documented or {0})


def has_parameters_of_its_own_in_every_layer(encoding: PositionalEncoding) -> None:
    """Different ones from the start, but for scalars; no entry at all without parameters."""
    model, expected = decoder(encoding), init(encoding)
    if model.share_position:
        return
    entries = position_entries(model)
    assert list(entries) == ["layers"] * bool(expected)
    stacked = jax.tree.map(lambda leaf: (SIZE.num_layers, *leaf.shape), expected)
    assert jax.tree.map(jnp.shape, entries.get("layers", {})) == stacked
    arrays = [leaf for leaf in jax.tree.leaves(entries) if leaf.ndim > 1]
    assert not arrays or any(np.any(leaf[0] != leaf[1]) for leaf in arrays)


def position_entries(model: Decoder) -> dict[str, Any]:
    """The decoder's initial parameters that belong to the encoding, by where they lie."""

    def entries(rng: jax.Array) -> dict[str, Any]:
        tokens = jnp.zeros((1, 1), jnp.int32)
        params = model.init(rng, tokens, tokens)["params"]
        places = {"top": params, "layers": params["layers"]}
        return {name: place["position"] for name, place in places.items() if "position" in place}

    return quick_jit(entries)(jax.random.key(0))


def has_interpolation_beyond_training_alone(encoding: PositionalEncoding) -> None:
    """If any: from the same parameters, the same values up to the training length, others then."""
    changed = encoding.interpolated()
    if changed is None:
        return
    params = init(encoding)
    jax.tree.map(np.testing.assert_array_equal, init(changed), params)
    for length in (LENGTH, 2 * LENGTH):
        (q, k, _), pos = content(length), np.arange(length)
        plain, squeezed = (logits(one, params, q, k, pos, pos) for one in (encoding, changed))
        assert np.array_equal(plain, squeezed) == (length <= LENGTH)


Check = Callable[[PositionalEncoding], None]
PROPERTIES: dict[Check, list[type[PositionalEncoding]]] = {
    has_finite_values_far_out: [broken.NotFiniteFarOut],
    has_the_same_values_in_blocks: [broken.DependsOnTheBlock],
    has_no_view_of_the_future: [broken.SeesTheFuture],
    has_all_bits_of_positions: [broken.RoundsPositions, broken.RoundsAngles],
    has_finite_gradients_at_distance_0: [broken.PowerOfDistance],
    has_equal_decode_rows: [broken.DependsOnTheBlock],
    has_equal_values_in_packed_documents: [broken.CountsRows],
    has_the_common_form: [broken.DependsOnTheBlock, broken.NotFiniteFarOut],
    has_no_hidden_state: [broken.CountsCalls],
    has_the_documented_size: [broken.PowerOfDistance, broken.CountsCalls],
    has_parameters_of_its_own_in_every_layer: [broken.SameInEveryLayer],
    has_interpolation_beyond_training_alone: [
        broken.InterpolatesEverywhere,
        broken.InterpolatesNowhere,
    ],
}


@functools.cache
def passes(check: Check, encoding: PositionalEncoding) -> bool:
    """Runs a check; once where two gin files give equal encodings (fire and fire_s)."""
    check(encoding)
    return True


@every_encoding
@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_encoding(check, name):
    for encoding in configured(name).encodings:
        assert passes(check, encoding)


@pytest.mark.parametrize("wrong, error", [(1.0, 0.0), (1.5, 0.5), (np.nan, np.nan)])
def test_largest_error_is_that_of_the_worst_leaf(wrong, error):
    expected = {"first": np.ones(2), "second": np.ones(2), "third": np.ones(2)}
    found = expected | {"second": np.array([1.0, wrong])}
    np.testing.assert_equal(largest_error(found, expected), error)


BROKEN = [(check, kind) for check, kinds in PROPERTIES.items() for kind in kinds]


@pytest.mark.parametrize("check, kind", BROKEN, ids=lambda value: value.__name__)
def test_property_is_missed_in_a_broken_encoding(check, kind):
    with pytest.raises(AssertionError):
        check(kind(SIZE.num_heads, SIZE.head_dim, LENGTH, SIZE.hidden_size))


@every_encoding
def test_translation_invariance_exactly_where_it_is_claimed(name):
    for encoding in configured(name).encodings:
        if encoding.translation_invariant:
            has_translation_invariance(encoding)
        else:
            with pytest.raises(AssertionError):
                has_translation_invariance(encoding)


def test_fire_s_has_one_set_of_parameters():
    model = configured("fire_s")
    assert model.share_position and not configured("fire").share_position
    entries, expected = position_entries(model), init(model.encodings[0])
    assert jax.tree.map(jnp.shape, entries) == {"top": jax.tree.map(jnp.shape, expected)}


def test_bfloat16_decoder_gives_encodings_integers_and_float32():
    """Every hook is asked, about integer positions; parameters are not cast."""
    encoding = broken.Recorder(12, 8, LENGTH, 96)
    model = Decoder(SIZE, (encoding,), vocab_size=32, dtype=jnp.bfloat16)
    tokens = jnp.zeros((1, 4), jnp.int32)
    broken.Recorder.seen.clear()
    jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
    assert broken.Recorder.seen == {
        "embed": ["int32"],
        "rotate": ["float32", "int32", "int32", 4],
        "bias": ["float32", "int32", "int32", 4],
        "logit_scale": ["float32", "int32"],
    }
