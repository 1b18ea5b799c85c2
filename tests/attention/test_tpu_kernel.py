"""The TPU kernels, interpreted on a CPU, against dense attention.

On a CPU, every step of the grid runs as it would on a TPU. What only the compiler can reject is
tested in `test_tpu_kernel_compile.py`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fire_reference import Case, equation_4, named
from sample_attention import (
    BATCH,
    BLOCK,
    ENCODINGS,
    LENGTH,
    WIDTH,
    assert_close,
    by_dense,
    by_kernel,
    content,
    dense_with,
    documents,
    encoding_of,
    fire_tables,
    kernel_with,
    opposite,
    outputs_and_gradients,
    restarting,
)

from fire_lm.attention import CommonBias
from fire_lm.attention.tpu import sublane_copies, sums
from fire_lm.attention.tpu.near_tables import NearTables, listed_parts
from fire_lm.attention.tpu.part_lists import KINDS, ROUNDS, Layout
from fire_lm.attention.tpu.schedule import Blocks, choose_blocks, skew
from fire_lm.attention.tpu.tables import Tables
from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE

# In the quick tier: no bias, and a bias with kinks. ALiBi and Sandwich have tables as KERPLE has.
TIERS: dict[str, Any] = {"nope": (), "alibi": pytest.mark.slow, "sandwich": pytest.mark.slow}
# With several strips in a block, the lists of a tile have several parts.
BLOCKS = {name: 256 if "fire" in name else BLOCK for name in ENCODINGS}
CASES = [
    pytest.param(name, block, marks=TIERS.get(name, pytest.mark.ci))
    for name, block in BLOCKS.items()
]


@pytest.mark.parametrize("name, block", [("fire", BLOCK), *CASES])
def test_kernels_are_dense_attention(name, block):
    """In float32, outputs agree to 1e-5 and gradients to 1e-4; some have documents and scales."""
    encoding = encoding_of(name)
    params = encoding.init(jax.random.key(1))
    packed = name in ("nope", "t5", "fire_g")
    segment = documents() if packed else None
    scale = jnp.linspace(0.5, 1.5, LENGTH)[None] if packed else None
    pos = restarting(documents()) if name == "fire_g" else None
    own = {"segment": segment, "pos": pos}
    if (name, block) == ("fire", 256):
        assert kinds_of_parts(encoding, params, block) >= {"3", "further", "near_0_2", "near_1_1"}

    (ours, out), (wanted, oracle) = (
        outputs_and_gradients(function, params, content(), scale)
        for function in (kernel_with(encoding, block=block, **own), dense_with(encoding, **own))
    )
    # Sandwich's bias is a sum of up to 64 cosines whose last bits depend on the CPU.
    np.testing.assert_allclose(out, oracle, atol=3e-5 if name == "sandwich" else 1e-5)
    assert_close(ours, wanted, 1e-4)
    if isinstance(encoding, FIRE):
        for leaf, gradient in scalar_gradients(encoding, params, scale, segment, pos).items():
            assert float(ours[0][leaf]) == pytest.approx(gradient, rel=1e-3), leaf


def kinds_of_parts(encoding: FIRE, params: Any, block: int) -> set[str]:
    """Return the kinds of parts that the kernel processes."""
    bias = encoding.common_bias(params, LENGTH, LENGTH)
    assert bias is not None
    blocks = Blocks(block, BATCH, 512)
    tables = Tables.of(bias, None, None, blocks, LENGTH)
    lists = np.asarray(listed_parts(tables, NearTables.of(tables, blocks), blocks, "by_query"))
    found = np.diff(lists[0, :, 0, : len(KINDS) + 1], axis=1).sum(axis=0)
    further = lists[0, :, 0, Layout.of(blocks.strips).further - 1].sum()
    names = zip((*KINDS, "further"), (*found, further), strict=True)
    return {name for name, count in names if count}


def scalar_gradients(
    encoding: FIRE, params: Any, scale: Any, segment: Any, pos: Any
) -> dict[str, float]:
    """Return d loss / d c, d L_multiplier and d gamma by central differences of Eq. 4 in float64.

    The reference is independent, so that it reveals an error that the kernel shares with dense
    attention. A position is equal to L, where a complex step would see one side alone.
    """
    limit: Any = encoding.normalizer_limit
    case = Case(encoding, encoding.hidden_layers, encoding.initial_L, limit)
    q, k, v, weights = np.asarray(content(), np.float64)
    place = np.arange(LENGTH)[None] if pos is None else np.asarray(pos)
    seen = np.tri(LENGTH, dtype=bool)[None]
    if segment is not None:
        seen = seen & (np.asarray(segment)[:, :, None] == np.asarray(segment)[:, None, :])
    scale = np.ones((1, LENGTH)) if scale is None else np.asarray(scale, np.float64)
    logits = scale[:, None, :, None] * np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(WIDTH)

    def loss(leaves: Any) -> float:
        bias_NTS = equation_4(leaves, case, queries=np.arange(LENGTH), keys=np.arange(LENGTH))
        bias_BNTS = np.moveaxis(bias_NTS[:, place[:, :, None], place[:, None, :]], 0, 1)
        biased = logits + opposite(scale)[:, None, :, None] * bias_BNTS
        biased = np.where(seen[:, None], biased, -1e3)
        shares = np.exp(biased - np.max(biased, axis=-1, keepdims=True))
        shares /= np.sum(shares, axis=-1, keepdims=True)
        return float(np.sum(np.einsum("bnts,bsnh->btnh", shares, v) * weights))

    exact, h = named(params), 1e-6
    return {
        leaf: (loss({**exact, leaf: exact[leaf] + h}) - loss({**exact, leaf: exact[leaf] - h}))
        / (2 * h)
        for leaf in ("c", "L_multiplier", "gamma")
        if leaf in exact
    }


@pytest.mark.slow
def test_the_sums_by_query_need_not_fit_into_scratch_memory(monkeypatch):
    """With many queries, their sums are reduced in every part instead of at the end."""
    sizes = {"offset": 3, "slope": 3, "rate": 1, "row": 16, "slab": 16}
    assert sums.rows_in_scratch(sizes) == 23 and sums.rows_in_scratch(sizes | {"row": 17}) == 7
    monkeypatch.setattr(sums, "_MOST_CHUNKS", 0)
    test_kernels_are_dense_attention("fire", 256)


@pytest.mark.ci
def test_gradients_reach_every_table():
    """The gradients equal those of the tables as a function of positions; all tables, and a few."""
    tables = fire_tables()
    floats = {name: getattr(tables, name) for name in CommonBias._fields if name != "exact"}
    # Kinks and slab get no gradient of their own: since the bias is continuous, the offsets carry
    # that of the kinks; the slab's rate carries that of the slab.
    for name in ("kink_K", "slab_MP"):
        del floats[name]

    def of(attention: Any, names: tuple[str, ...]) -> Any:
        def function(chosen: dict[str, jax.Array], x: jax.Array) -> jax.Array:
            return attention(tables._replace(**chosen), x)

        chosen = {name: floats[name] for name in names}
        return outputs_and_gradients(function, chosen, content())

    everything = of(by_dense, tuple(floats))
    for names in (tuple(floats), ("row_P", "slope_KN")):
        (ours, _), out = of(by_kernel, names)
        np.testing.assert_allclose(out, everything[1], atol=1e-5)
        assert_close(ours, {name: everything[0][0][name] for name in names}, 1e-4)


@pytest.mark.parametrize(
    "table, index",
    [("slab_MP", (0, 5)), ("row_P", (200,)), ("gain_P", (299,)), ("slope_KN", (0, 1))],
)
@pytest.mark.ci
def test_a_wrong_table_is_seen(table, index):
    """A wrong table fails the comparisons above. (Equal offsets of all keys change nothing.)"""
    tables, x = fire_tables(), content()
    wrong = tables._replace(**{table: getattr(tables, table).at[index].add(0.5)})
    attention = jax.jit(by_kernel)
    right, ours = (attention(bias, x) for bias in (tables, wrong))
    assert float(jnp.max(jnp.abs(right - ours))) > 1e-3


@pytest.mark.parametrize(
    "name, width",
    [
        pytest.param("fire", 64, marks=pytest.mark.slow),
        pytest.param("nope", 128, marks=pytest.mark.ci),
    ],
)
def test_bfloat16(name, width):
    """As in dense attention, products round their operands and sums are float32."""
    encoding = encoding_of(name, width)
    params = encoding.init(jax.random.key(1))

    half = content(width=width, dtype=jnp.bfloat16)
    ours, out = outputs_and_gradients(kernel_with(encoding), params, half)
    assert out.dtype == jnp.bfloat16 and ours[1].dtype == jnp.bfloat16
    whole = half.astype(jnp.float32)
    wanted, oracle = outputs_and_gradients(dense_with(encoding), params, whole)
    np.testing.assert_allclose(out.astype(jnp.float32), oracle, atol=4e-2)
    assert_close(ours[1], wanted[1], 4e-2)
    # Parameters are compared all together: the gradient to the last offsets is 0 up to rounding.
    error = optax.tree.norm(jax.tree.map(jnp.subtract, ours[0], wanted[0]))
    assert error <= 6e-2 * optax.tree.norm(wanted[0])


def test_blocks():
    """Blocks have few tokens and as many sequences as fit; an error explains what does not fit."""
    half = jnp.dtype(jnp.bfloat16)
    assert choose_blocks(2048, 8, 64, half, None) == Blocks(512, 8, 2048)
    assert choose_blocks(2048, 6, 128, half, None) == Blocks(512, 3, 2048)
    assert choose_blocks(600, 1, 64, half, None) == Blocks(384, 1, 768)
    assert choose_blocks(1, 7, 64, half, None) == Blocks(128, 7, 128)
    assert choose_blocks(16_384, 8, 64, half, 512, split=True).batch == 4, "dk and dv in float32"
    with pytest.raises(
        UserError, match="MiB of VMEM for blocks of 1024 .* block_size to 768 or less"
    ):
        choose_blocks(2048, 2, 64, half, 1024)
    assert choose_blocks(2048, 2, 64, half, 768) == Blocks(768, 2, 2304)
    with pytest.raises(
        UserError, match="length 1000000, .*: choose attention implementation 'blockwise'"
    ):
        choose_blocks(1_000_000, 1, 64, half, None)
    with pytest.raises(UserError, match="block_size is 100: it must be a positive multiple of 128"):
        choose_blocks(2048, 2, 64, half, 100)
    with pytest.raises(UserError, match="head dim of 64 or 128, not 80"):
        choose_blocks(2048, 2, 80, half, None)
    with pytest.raises(UserError, match="bfloat16 or float32, not float16"):
        choose_blocks(2048, 2, 64, jnp.dtype(jnp.float16), None)


def test_skew():
    slab = np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)
    skewed = np.asarray(skew(jnp.asarray(slab)))
    row, place = np.indices((128, 256))
    wanted = np.where(place >= row, slab[:, np.maximum(place - row, 0)], 0)
    np.testing.assert_array_equal(skewed, wanted)


def test_near_tables_are_the_bias():
    """The near tables equal the bias at every distance in each strip for which they suffice.

    L lies inside the first strip, which more kinks cross than the tables can hold.
    """
    length, head = 512, 1
    encoding = encoding_of("fire", length=length)

    @jax.jit
    def made() -> Any:
        bias = encoding.common_bias(encoding.init(jax.random.key(1)), length, length)
        assert bias is not None
        blocks = Blocks(128, 1, length)
        tables = Tables.of(bias, None, None, blocks, length)
        pos = jnp.arange(length)[None]
        return tables, NearTables.of(tables, blocks), bias(pos, pos)[0, head]

    tables, near, dense = made()
    crossed = np.asarray(near.crossed_CB)
    assert crossed[0].min() > ROUNDS and crossed[1:].max() <= ROUNDS
    assert set(crossed[1:].ravel()) >= {1, 2}
    slope, offset, *bends = np.asarray(near.copies_NCTSW[head]).swapaxes(0, 1)
    wanted = np.asarray(dense) * np.log2(np.e)
    strip, sublane, lane = np.indices(slope.shape)
    for group in range(16):
        query, key = 128 * strip + 8 * group + lane, 128 * strip + 8 * group + sublane
        seen = (query >= key) & (query < length) & (strip > 0)
        query = np.minimum(query, length - 1)
        row = np.asarray(tables.row_EP)[0][query]
        value = slope * row + offset
        for change, kink in zip(bends[::2], bends[1::2], strict=True):
            value += change * np.maximum(row, kink)
        np.testing.assert_allclose(value[seen], wanted[query, key][seen], atol=1e-5)


@pytest.mark.ci
def test_the_copies_of_sublanes_are_shifted_by_their_sublane():
    """The kernels, interpreted, agree with the definition, except at negative distances."""
    rows, rng = 70, np.random.default_rng(0)
    table = rng.normal(size=(rows, 256)).astype(np.float32)
    sublane, lane = np.indices((8, 256))
    real = lane >= sublane
    copies = np.where(real, table[:, np.maximum(lane - sublane, 0)], 0)
    total = np.zeros_like(table)
    np.add.at(total, (slice(None), (lane - sublane)[real]), copies[:, real])
    for kernel, function, given, wanted in (
        (sublane_copies._spread, sublane_copies.spread, table, copies),
        (sublane_copies._collect, sublane_copies.collect, np.where(real, copies, 1e3), total),
    ):
        given = given.astype(np.float32)
        out = jax.ShapeDtypeStruct(wanted.shape, np.float32)
        interpreted = sublane_copies.by_kernel(kernel, given, out=out, interpret=True)
        for found in (interpreted, function(given)):
            found = np.asarray(found)
            found = np.where(real, found, 0) if found.ndim == 3 else found
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
