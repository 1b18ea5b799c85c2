"""The TPU kernels, step by step on a CPU, against dense attention.

On a CPU every step of the grid runs as the TPU would run it, but for what only the compiler can
refuse: `test_tpu_kernel_compile.py` asks it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fire_lm.attention import CommonBias, announce, attend
from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.dense import dense_attention
from fire_lm.attention.tpu import tpu_attention
from fire_lm.attention.tpu.schedule import Blocks, choose_blocks, live_segments, skew, tiles
from fire_lm.errors import UserError
from fire_lm.models import Decoder, ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.kerple import KERPLELog
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.positions.sandwich import Sandwich
from fire_lm.positions.t5 import T5

# Half the time for programs that run once.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
BATCH, HEADS, WIDTH, BLOCK = 2, 2, 64, 128
# Not a multiple of the block; three blocks, so that dq comes from up to three columns of tiles.
LENGTH = 300
IN_CI = ("alibi", "sandwich", "kerple", "t5")  # the same kernels as with FIRE, or parts of them
ENCODINGS: dict[str, Any] = {
    "nope": NoPE,
    "fire": functools.partial(FIRE, init_L=100.0),
    "fire_g": functools.partial(FIRE, init_L=60.0, init_gamma=0.7, hidden_layers=1),
    "alibi": ALiBi,
    "kerple": KERPLELog,
    "t5": T5,
    "sandwich": Sandwich,
}


def encoding_of(name: str, width: int = WIDTH, length: int = LENGTH) -> PositionalEncoding:
    return ENCODINGS[name](HEADS, width, length, HEADS * width)


def content(length: int = LENGTH, width: int = WIDTH, dtype: Any = jnp.float32) -> Any:
    """Queries, keys, values, and what the output is multiplied with for a loss."""
    shape = (4, BATCH, length, HEADS, width)
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def documents(length: int = LENGTH) -> jax.Array:
    """Segments in one example, also across the blocks' edges; the other is one document."""
    ends = np.array([[length // 3, length // 3 + 1, 7 * length // 8], [length] * 3])
    starts = np.arange(length)[None, :, None] >= ends[:, None, :]
    return jnp.asarray(starts.sum(axis=2), jnp.int32)


def restarting(segment: jax.Array) -> jax.Array:
    """Positions that begin at 0 in every document."""
    place = jnp.arange(segment.shape[1])[None]
    begins = jnp.diff(segment, axis=1, prepend=-1) != 0
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)


def by_kernel(
    bias: CommonBias | None, x: jax.Array, scale: Any = None, segment: Any = None, pos: Any = None
) -> jax.Array:
    return tpu_attention(
        *x[:3],
        bias=bias,
        logit_scale_BT=scale,
        bias_scale_BT=opposite(scale),
        segment_BT=segment,
        pos_BT=pos,
        block_size=BLOCK,
    )


def opposite(scale: Any) -> Any:
    """The factor on the bias: large where that on q k is small."""
    return None if scale is None else 2 - scale


def by_dense(
    bias: Any, x: jax.Array, scale: Any = None, segment: Any = None, pos: Any = None
) -> jax.Array:
    pos = jnp.arange(x.shape[2])[None] if pos is None else pos
    return dense_attention(
        *x[:3],
        q_pos_BT=pos,
        k_pos_BS=pos,
        bias=bias,
        logit_scale_BT=scale,
        bias_scale_BT=opposite(scale),
        q_segment_BT=segment,
        k_segment_BS=segment,
    )


def outputs_and_gradients(function: Any, *arguments: Any) -> Any:
    """Of `function(params, x, scale)`, by all of them."""

    def loss(*arguments: Any) -> Any:
        out = function(*arguments)
        return jnp.sum(out.astype(jnp.float32) * arguments[1][3].astype(jnp.float32)), out

    argnums = tuple(range(len(arguments)))
    return quick_jit(jax.grad(loss, argnums, has_aux=True))(*arguments)


def assert_close(ours: Any, wanted: Any, relative: float) -> None:
    """Leaf by leaf, to its largest value; what is 0 but for rounding, to a tenth of the tree's."""
    largest = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted))

    def check(path: Any, ours: jax.Array, wanted: jax.Array) -> None:
        scale = max(float(jnp.max(jnp.abs(wanted))), 0.1 * largest)
        error = float(jnp.max(jnp.abs(ours.astype(jnp.float32) - wanted.astype(jnp.float32))))
        assert error <= relative * scale, (jax.tree_util.keystr(path), error, scale)

    jax.tree_util.tree_map_with_path(check, ours, wanted)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ci if name in IN_CI else ()) for name in ENCODINGS],
)
def test_kernels_are_dense_attention(name):
    """Outputs to 1e-5 and all gradients to 1e-4, in float32; some with documents and scales."""
    encoding = encoding_of(name)
    params = encoding.init(jax.random.key(1))
    packed = name in ("nope", "t5", "fire_g")
    segment = documents() if packed else None
    scale = jnp.linspace(0.5, 1.5, LENGTH)[None] if packed else None
    pos = restarting(documents()) if name == "fire_g" else None

    def kernel(params: Any, x: jax.Array, scale: Any) -> jax.Array:
        tables = encoding.common_bias(params, LENGTH, LENGTH)
        return by_kernel(tables, x, scale, segment, pos)

    def dense(params: Any, x: jax.Array, scale: Any) -> jax.Array:
        bias = functools.partial(encoding.bias, params, context_length=LENGTH)
        return by_dense(lambda q, k: bias(q, k), x, scale, segment, pos)

    (ours, out), (wanted, oracle) = (
        outputs_and_gradients(function, params, content(), scale) for function in (kernel, dense)
    )
    np.testing.assert_allclose(out, oracle, atol=1e-5)
    assert_close(ours, wanted, 1e-4)
    if isinstance(encoding, FIRE):
        for leaf, gradient in scalar_gradients(encoding, params, scale, segment, pos).items():
            assert float(ours[0][leaf]) == pytest.approx(gradient, rel=1e-3), leaf


def scalar_gradients(
    encoding: FIRE, params: Any, scale: Any, segment: Any, pos: Any
) -> dict[str, float]:
    """d loss / d c, L's multiplier and gamma: attention with Eq. 4 in numpy float64, and central
    differences. What the kernel and dense attention both had wrong would be seen."""
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    q, k, v, weights = np.asarray(content(), np.float64)
    place = np.arange(LENGTH)[None] if pos is None else np.asarray(pos)
    distance = np.abs(place[:, :, None] - place[:, None, :])
    seen = np.tri(LENGTH, dtype=bool)[None]
    if segment is not None:
        seen = seen & (np.asarray(segment)[:, :, None] == np.asarray(segment)[:, None, :])
    logits = np.einsum("btnh,bsnh->btsn", q, k) / np.sqrt(WIDTH)
    bias_scale = np.ones(1)
    if scale is not None:
        logits *= np.asarray(scale)[:, :, None, None]
        bias_scale = np.asarray(opposite(scale))[:, :, None, None]

    def loss(leaves: Any) -> float:
        def psi(x: Any) -> Any:
            return np.log1p(np.abs(leaves["c"]) * x)

        L = np.abs(leaves["L_multiplier"] * encoding.init_L)
        row = psi(np.maximum(place, L))
        x = (psi(distance) / (row + encoding.epsilon)[:, :, None])[..., None]
        for layer in range(encoding.hidden_layers + 1):
            dense = leaves["mlp"][f"dense_{layer}"]
            x = (np.maximum(x, 0) if layer else x) @ dense["kernel"] + dense["bias"]
        gain = (row / psi(L)) ** leaves.get("gamma", 0)
        biased = np.where(
            seen[..., None], logits + bias_scale * gain[:, :, None, None] * x, -np.inf
        )
        shares = np.exp(biased - np.max(biased, axis=2, keepdims=True))
        shares /= np.sum(shares, axis=2, keepdims=True)
        return float(np.sum(np.einsum("btsn,bsnh->btnh", shares, v) * weights))

    h = 1e-6
    return {
        leaf: (loss({**exact, leaf: exact[leaf] + h}) - loss({**exact, leaf: exact[leaf] - h}))
        / (2 * h)
        for leaf in ("c", "L_multiplier", "gamma")
        if leaf in exact
    }


def fire_tables(length: int = LENGTH) -> CommonBias:
    encoding = encoding_of("fire_g", length=length)
    tables = encoding.common_bias(encoding.init(jax.random.key(1)), length, length)
    assert tables is not None
    return tables


@pytest.mark.ci
def test_gradients_reach_every_table():
    """Against those of the tables as a function of positions; all of them, and a few alone."""
    tables = fire_tables()
    floats = {name: getattr(tables, name) for name in CommonBias._fields if name != "exact"}
    del floats["kink_K"]  # its gradient is that of the offsets: the bias is continuous

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
def test_a_wrong_table_is_seen(table, index):
    """The comparisons above are not blind to them. (Equal offsets of all keys change nothing.)"""
    tables, x = fire_tables(), content()
    wrong = tables._replace(**{table: getattr(tables, table).at[index].add(0.5)})
    attention = jax.jit(by_kernel)
    right, ours = (attention(bias, x) for bias in (tables, wrong))
    assert float(jnp.max(jnp.abs(right - ours))) > 1e-3


@pytest.mark.parametrize("name, width", [("fire", 64), ("nope", 128)])
@pytest.mark.ci
def test_bfloat16(name, width):
    """Products round their operands, and sums are float32, as in dense attention."""
    encoding = encoding_of(name, width)
    params = encoding.init(jax.random.key(1))

    def kernel(params: Any, x: jax.Array) -> jax.Array:
        return by_kernel(encoding.common_bias(params, LENGTH, LENGTH), x)

    def dense(params: Any, x: jax.Array) -> jax.Array:
        bias = functools.partial(encoding.bias, params, context_length=LENGTH)
        return by_dense(lambda q, k: bias(q, k), x)

    half = content(width=width, dtype=jnp.bfloat16)
    ours, out = outputs_and_gradients(kernel, params, half)
    assert out.dtype == jnp.bfloat16 and ours[1].dtype == jnp.bfloat16
    wanted, oracle = outputs_and_gradients(dense, params, half.astype(jnp.float32))
    np.testing.assert_allclose(out.astype(jnp.float32), oracle, atol=4e-2)
    assert_close(ours[1], wanted[1], 4e-2)
    # Of parameters all together: that to the last offsets is 0 but for rounding.
    error = optax.tree.norm(jax.tree.map(jnp.subtract, ours[0], wanted[0]))
    assert error <= 6e-2 * optax.tree.norm(wanted[0])


@pytest.mark.ci
def test_attend_falls_back_where_tables_do_not_hold():
    """Positions with gaps, negative or beyond the tables, and too many kinks: blocks, own bias."""
    encoding = encoding_of("fire", length=140)
    params, x, place = encoding.init(jax.random.key(1)), content(140), jnp.arange(140)[None]
    documents_BT = documents(140)

    @functools.partial(quick_jit, static_argnums=3)
    def attended(pos: jax.Array, segment: Any, exact: jax.Array, implementation: Any) -> jax.Array:
        tables = encoding.common_bias(params, 140, 140)
        assert tables is not None
        broken = tables._replace(slope_KN=3 * tables.slope_KN, exact=exact)
        return attend(
            *x[:3],
            q_pos_BT=pos,
            k_pos_BS=pos,
            bias=lambda q, k: encoding.bias(params, q, k, 140),
            q_segment_BT=segment,
            k_segment_BS=segment,
            in_order=True,
            tables=broken,
            implementation=implementation,
        )

    yes = jnp.bool_(True)
    own_BT, taken_up_BT = restarting(documents_BT), documents_BT % 2
    for pos, segment, exact, falls_back in (
        (place, None, yes, False),
        (place, None, ~yes, True),
        (3 * place, None, yes, True),
        (own_BT, documents_BT, yes, False),
        (own_BT, documents_BT, ~yes, True),
        (own_BT.at[0, 139].add(1), documents_BT, yes, True),
        (own_BT - 1, documents_BT, yes, True),
        (own_BT + 100, documents_BT, yes, True),
        # Documents that go on after another one.
        (place + 0 * own_BT, taken_up_BT, yes, False),
        (own_BT, taken_up_BT, yes, True),
    ):
        ours, dense = (attended(pos, segment, exact, name) for name in ("tpu", "dense"))
        # The tables are broken, so that their use is seen.
        assert (np.max(np.abs(ours - dense)) < 1e-5) == falls_back, (pos, segment, exact)


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"in_order": False}, "same tokens"),
        ({"tables": None}, "common form"),
        ({"width": 32}, "width 64 or 128 in bfloat16 or float32, not 32 in float32"),
        ({"dtype": jnp.float16}, "not 64 in float16"),
        ({"pos": jnp.linspace(0, 9, 20)[None]}, "integer positions"),
    ],
)
def test_attend_says_why_the_kernel_cannot_run(changed, told):
    given = {"in_order": True, "width": 64, "dtype": jnp.float32, "pos": jnp.arange(20)[None]}
    given |= {"tables": fire_tables(20)} | changed
    x = content(20, given["width"], given["dtype"])
    with pytest.raises(UserError, match=f"'tpu' .*{told}.*: choose 'auto'"):
        attend(
            *x[:3],
            q_pos_BT=given["pos"],
            k_pos_BS=given["pos"],
            bias=lambda q, k: jnp.zeros((1, HEADS, q.shape[1], k.shape[1])),
            in_order=given["in_order"],
            tables=given["tables"],
            implementation="tpu",
        )


def test_what_runs_in_blocks_on_a_tpu_is_announced(monkeypatch, caplog):
    """By attention where its kernel cannot run, and by a model whose positions are drawn."""
    announce.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    x, pos = content(130), jnp.arange(130)[None]
    for _ in range(2):  # told once
        out = attend(
            *x[:3],
            q_pos_BT=pos,
            k_pos_BS=pos,
            bias=lambda q, k: jnp.zeros((1, HEADS, q.shape[1], k.shape[1])),
            in_order=True,
        )
    np.testing.assert_allclose(out, by_dense(lambda q, k: None, x), atol=1e-5)
    assert [record.message for record in caplog.records] == [
        "attention is computed in blocks, since the TPU kernel takes a bias that has the common "
        "form, as FIRE has with ReLU"
    ]
    size = ModelSize(num_layers=1, num_heads=1, head_dim=64, hidden_size=64, mlp_size=64,
                     init_std=0.02)  # fmt: skip
    for resampling in (Resampling(), RandomizedPositions()):
        model = Decoder(size, (ALiBi(1, 64, 130, 64),), 8, resampling=resampling)
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 130), jnp.int32), pos)
    assert [record.message for record in caplog.records[1:]] == [
        "RandomizedPositions: with a bias, attention at positions other than 0, 1, 2, ... is "
        "computed in blocks, not by the TPU kernel"
    ]


def test_blocks():
    """As few tokens as the length allows, as many sequences as fit; what does not is told."""
    half = jnp.dtype(jnp.bfloat16)
    assert choose_blocks(2048, 8, 64, half, None) == Blocks(512, 8, 2048)
    assert choose_blocks(2048, 6, 128, half, None) == Blocks(512, 3, 2048)
    assert choose_blocks(600, 1, 64, half, None) == Blocks(384, 1, 768)
    assert choose_blocks(1, 7, 64, half, None) == Blocks(128, 7, 128)
    with pytest.raises(UserError, match="needs .* MiB for a block of 1024 of .* of 768 fits"):
        choose_blocks(2048, 2, 64, half, 1024)
    assert choose_blocks(2048, 2, 64, half, 768) == Blocks(768, 2, 2304)
    with pytest.raises(UserError, match="of 1000000 tokens .*: choose implementation 'blockwise'"):
        choose_blocks(1_000_000, 1, 64, half, None)
    with pytest.raises(UserError, match="100 tokens, not a multiple of 128"):
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


@pytest.mark.parametrize("platform, compiled", [("cpu", False), ("tpu", True)])
def test_a_tpu_runs_what_mosaic_compiles_and_a_cpu_the_same_step_by_step(platform, compiled):
    """The program is lowered for each; `test_tpu_kernel_compile.py` compiles it, in ci."""
    x = jax.ShapeDtypeStruct((4, 1, 128, 1, WIDTH), jnp.float32)
    program = jax.jit(functools.partial(by_kernel, None)).trace(x)
    text = program.lower(lowering_platforms=(platform,)).as_text()
    assert ("tpu_custom_call" in text) == compiled


@pytest.mark.parametrize("order", [pytest.param("by_query", marks=pytest.mark.ci), "by_key"])
def test_live_segments_hold_those_of_every_value(order):
    """And far from the diagonal no more than a few."""
    blocks = Blocks(256, 1, 1024)
    tables = fire_tables(1024)
    bounds = (tables.slab_MP[0], tables.row_P, tables.kink_K, tables.slope_KN)
    live = np.asarray(live_segments(*bounds, blocks, order))
    row, slab = np.asarray(tables.row_P), np.asarray(tables.slab_MP[0])
    for tile, (query_block, key_block) in enumerate(tiles(blocks, order).T):
        for part in range(4):
            query = query_block * 256 + part // 2 * 128 + np.arange(128)[None]
            key = key_block * 256 + part % 2 * 128 + np.arange(128)[:, None]
            seen = query >= key
            x = np.where(seen, slab[np.maximum(query - key, 0)] * row[query], np.nan)
            segment = np.searchsorted(np.asarray(tables.kink_K), x[seen])
            first, last = live[tile, 0, 2 * part : 2 * part + 2]
            assert 0 <= first <= last <= tables.kink_K.size and (last - first) % 2 == 0
            if segment.size:
                assert first <= segment.min() and segment.max() <= last
    far = np.flatnonzero(np.subtract(*tiles(blocks, order)) == 3)
    assert np.max(live[far, 0, 1::2] - live[far, 0, ::2]) <= 4


@pytest.mark.ci
def test_decoder_with_kernels_is_the_dense_one():
    """Logits and gradients, with what all layers share (FIRE-S), log n and a scan over layers."""
    size = ModelSize(num_layers=2, num_heads=1, head_dim=64, hidden_size=64, mlp_size=64,
                     init_std=0.02)  # fmt: skip
    encoding = FIRE(1, 64, train_length=130, hidden_size=64, init_L=40.0)
    tokens, pos = jnp.arange(130)[None] % 7, jnp.arange(130)[None]
    found = []
    for attention in ("dense", "tpu"):
        model = Decoder(
            size, (encoding,), 8, attention=attention, log_n=LogN(on="both"), share_position=True
        )
        if attention == "dense":
            params = quick_jit(model.init)(jax.random.key(0), tokens, pos)["params"]

        def loss(params: Any, model: Decoder = model) -> Any:
            logits: Any = model.apply({"params": params}, tokens, pos)
            return jnp.sum(jnp.sin(logits)), logits

        found.append(quick_jit(jax.grad(loss, has_aux=True))(params))
    (wanted, oracle), (ours, logits) = found
    np.testing.assert_allclose(logits, oracle, atol=1e-5)
    assert_close(ours, wanted, 1e-3)


def test_the_fall_back_is_blockwise_attention_to_the_last_bit():
    """Queries are rounded for the kernels alone; in bfloat16, with positions that have gaps."""
    encoding = encoding_of("kerple", length=140)
    params, pos = encoding.init(jax.random.key(1)), 2 * jnp.arange(140)[None]
    x = content(140, dtype=jnp.bfloat16)

    def bias(q_pos: jax.Array, k_pos: jax.Array) -> Any:
        return encoding.bias(params, q_pos, k_pos, 140)

    tables = encoding.common_bias(params, 140, 140)
    at: dict[str, Any] = {"q_pos_BT": pos, "k_pos_BS": pos, "bias": bias}

    def by_attend(_: Any, x: jax.Array) -> jax.Array:
        return attend(*x[:3], **at, in_order=True, tables=tables, implementation="tpu")

    def by_blocks(_: Any, x: jax.Array) -> jax.Array:
        return blockwise_attention(*x[:3], **at)

    (ours, out), (wanted, oracle) = (
        outputs_and_gradients(function, {}, x) for function in (by_attend, by_blocks)
    )
    np.testing.assert_array_equal(out, oracle)
    np.testing.assert_array_equal(ours[1], wanted[1])


def step_equations(**settings: Any) -> list[tuple[Any, str]]:
    """All equations of a step of training with FIRE, and "scan" where a layer runs them."""
    size = ModelSize(num_layers=3, num_heads=1, head_dim=64, hidden_size=64, mlp_size=64,
                     init_std=0.02)  # fmt: skip
    encoding = FIRE(1, 64, train_length=130, hidden_size=64)
    model = Decoder(size, (encoding,), 8, attention="tpu", **settings)
    tokens = pos = jnp.arange(130)[None]
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, pos)
    found = []

    def look(jaxpr: Any, loop: str) -> None:
        for equation in jaxpr.eqns:
            found.append((equation, loop))
            for inner in jaxprs_in_params(equation.params):
                look(inner, "scan" if equation.primitive.name == "scan" else loop)

    def loss(params: Any) -> jax.Array:
        logits: Any = model.apply(params, tokens, pos)
        return jnp.sum(logits)

    look(jax.make_jaxpr(jax.grad(loss))(params).jaxpr, "")
    return found


@pytest.mark.parametrize("remat", [pytest.param("none", marks=pytest.mark.ci), "full"])
def test_the_forward_kernel_runs_once_a_layer(remat):
    """What it makes is kept, also where the rest is computed again; compiled, and interpreted."""
    names = [e.params["name"] for e, _ in step_equations(remat=remat) if "grid_mapping" in e.params]
    assert sorted(names) == 2 * ["fire_lm_attention_backward"] + 2 * ["fire_lm_attention_forward"]


def loops_with_tables(share_position: bool) -> list[str]:
    """Where a training step works out psi of all distances: "" for once, "scan" for each layer."""
    return [
        loop
        for equation, loop in step_equations(remat="full", share_position=share_position)
        if equation.primitive.name == "log1p"
        and [out.aval.shape for out in equation.outvars] == [(130,)]
    ]


@pytest.mark.ci
def test_tables_that_all_layers_share_are_built_once_a_step():
    """FIRE-S; else in each layer, and again for its backward pass."""
    once, each = loops_with_tables(True), loops_with_tables(False)
    assert set(once) == {""} and set(each) == {"scan"}
    assert len(each) > 1


@pytest.mark.ci
@pytest.mark.parametrize(
    "name, packed", [("kerple", False), pytest.param("fire_g", True, marks=pytest.mark.ci)]
)
def test_every_device_runs_its_sequences_and_heads(name, packed):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "tensor"),
                axis_types=(AxisType.Auto,) * 2)  # fmt: skip
    split = NamedSharding(mesh, PartitionSpec("data", None, "tensor", None))
    encoding, pos, segment = encoding_of(name, length=130), jnp.arange(130)[None], None
    if packed:
        segment = documents(130)
        pos = restarting(segment)
    params = encoding.init(jax.random.key(1))

    def attended(sharding: NamedSharding | None, params: Any, x: jax.Array) -> jax.Array:
        if sharding is not None:
            x = jax.lax.with_sharding_constraint(
                x, NamedSharding(mesh, PartitionSpec(None, "data", None, "tensor", None))
            )
        return attend(
            *x[:3],
            q_pos_BT=pos,
            k_pos_BS=pos,
            bias=lambda q, k: encoding.bias(params, q, k, 130),
            q_segment_BT=segment,
            k_segment_BS=segment,
            in_order=True,
            tables=encoding.common_bias(params, 130, 130),
            sharding=sharding,
            implementation="tpu",
        )

    (ours, out), (wanted, whole) = (
        outputs_and_gradients(functools.partial(attended, sharding), params, content(130))
        for sharding in (split, None)
    )
    assert "tensor" in str(out.sharding)
    np.testing.assert_allclose(out, whole, atol=1e-6)
    assert_close(ours, wanted, 1e-4)
