"""When attention runs in the TPU kernel and when in blocks, and what a program then contains."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from sample_attention import (
    HEADS,
    WIDTH,
    assert_close,
    by_dense,
    by_kernel,
    content,
    documents,
    encoding_of,
    fire_tables,
    outputs_and_gradients,
    restarting,
)

from fire_lm.attention import (
    Layout,
    Mask,
    TabulatedBias,
    Terms,
    Tokens,
    announce,
    attend,
    choose_implementation,
    compiling_for,
)
from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.tpu.dispatch import obstacle
from fire_lm.errors import UserError
from fire_lm.models import Decoder, ModelSize, Turn
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import RandomizedPositions, Resampling


@pytest.mark.ci
def test_what_the_tables_do_not_hold_is_nan():
    """Outputs are NaN where a promise about the positions or the kinks is broken.

    The positions have gaps, are negative or exceed the tables, or there are too many kinks.
    """
    encoding = encoding_of("fire", length=140)
    params, x, place = encoding.init(jax.random.key(1)), content(140), jnp.arange(140)[None]
    documents_BT = documents(140)

    @functools.partial(jax.jit, static_argnums=3)
    def attended(pos: jax.Array, segment: Any, exact: jax.Array, implementation: Any) -> jax.Array:
        tables = encoding.common_bias(params, 140, 140)
        assert tables is not None
        bias = TabulatedBias(
            lambda q, k: encoding.bias(params, q, k, 140), tables._replace(exact=exact)
        )
        layout = Layout(in_order=True, consecutive=True, implementation=implementation)
        (q, k, v), tokens = x[:3], Tokens(pos, segment)
        return attend(q, k, v, tokens, tokens, Terms(bias), layout=layout)

    yes = jnp.bool_(True)
    own_BT, taken_up_BT = restarting(documents_BT), documents_BT % 2
    for pos, segment, exact, holds in (
        (place, None, yes, True),
        (place, None, ~yes, False),
        (3 * place, None, yes, False),
        (own_BT, documents_BT, yes, True),
        (own_BT, documents_BT, ~yes, False),
        (own_BT.at[0, 139].add(1), documents_BT, yes, False),
        (own_BT - 1, documents_BT, yes, False),
        (own_BT + 100, documents_BT, yes, False),
        # Documents that are continued after another document.
        (place + 0 * own_BT, taken_up_BT, yes, True),
        (own_BT, taken_up_BT, yes, False),
    ):
        ours = attended(pos, segment, exact, "tpu")
        if not holds:
            assert np.all(np.isnan(ours)), (pos, segment, exact)
            continue
        np.testing.assert_allclose(ours, attended(pos, segment, exact, "dense"), atol=1e-5)


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"in_order": False}, "same tokens"),
        ({"tables": None}, "a bias with tables"),
        ({"consecutive": False}, "consecutive positions"),
        ({"width": 32}, "head dim of 64 or 128 in bfloat16 or float32, not 32 in float32"),
        ({"dtype": jnp.float16}, "not 64 in float16"),
        ({"pos": jnp.linspace(0, 9, 20)[None]}, "integer positions"),
        ({"mask": Mask(chunk=4)}, "a causal mask without chunks"),
        ({"mask": Mask(causal=False)}, "a causal mask without chunks"),
        ({"mask": Mask(window=4), "consecutive": False, "tables": None}, "positions .* a window"),
        ({"values": 32}, "needs a head dim of 64 or 128 .* not 64 with values of 32 in float32"),
    ],
)
def test_attend_says_why_the_kernel_cannot_run(changed, told):
    given = {"in_order": True, "width": 64, "dtype": jnp.float32, "pos": jnp.arange(20)[None]}
    given |= {"tables": fire_tables(20), "consecutive": True, "mask": Mask(), "values": None}
    given |= changed
    x = content(20, given["width"], given["dtype"])

    def zeros(q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
        return jnp.zeros((1, HEADS, q_pos.shape[1], k_pos.shape[1]))

    with pytest.raises(UserError, match=f"'tpu' .*{told}.*: choose 'auto'"):
        attend(
            *(*x[:2], x[2, ..., : given["values"]], Tokens(given["pos"]), Tokens(given["pos"])),
            Terms(TabulatedBias(zeros, given["tables"]) if given["tables"] else zeros),
            mask=given["mask"],
            layout=Layout(given["in_order"], given["consecutive"], implementation="tpu"),
        )


def test_the_kernel_is_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(UserError, match="'tpu' needs a TPU .*: choose 'auto' or 'blockwise'"):
        choose_implementation("tpu", 130)
    with compiling_for("tpu"):
        assert choose_implementation("tpu", 130) == "tpu"


@pytest.mark.ci
def test_what_runs_in_blocks_on_a_tpu_is_announced(monkeypatch, caplog):
    """Attention announces that its kernel cannot run; so does a model with resampled positions."""
    announce.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    x, pos = content(130), jnp.arange(130)[None]
    for _ in range(2):  # announced once
        terms = Terms(lambda q, k: jnp.zeros((1, HEADS, q.shape[1], k.shape[1])))
        out = attend(*x[:3], Tokens(pos), Tokens(pos), terms, layout=Layout(in_order=True))
    np.testing.assert_allclose(out, by_dense(lambda q, k: None, x), atol=1e-5)
    in_blocks = "using 'blockwise' attention, because the TPU kernel needs "
    wanted = [
        in_blocks + "a bias with tables (a CommonBias), such as FIRE's with activation 'relu'"
    ]
    assert [record.message for record in caplog.records] == wanted
    size = ModelSize(num_layers=1, num_heads=1, head_dim=64, hidden_size=64, mlp_size=64,
                     init_std=0.02)  # fmt: skip
    for resampling in (Resampling(), RandomizedPositions()):
        model = Decoder(size, (Turn(ALiBi(1, 64, 130, 64)),), 8, resampling=resampling)
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 130), jnp.int32), pos)
    wanted += [in_blocks + "consecutive positions (0, 1, 2, ...) for a bias"]
    assert [record.message for record in caplog.records] == wanted


@pytest.mark.parametrize("kinks, reason", [
    (255, None), (256, "needs a bias with at most 255 kinks, not 256"),
])  # fmt: skip
def test_a_bias_with_more_kinks_than_a_list_entry_holds_cannot_run(kinks, reason):
    segments = jnp.zeros((kinks + 1, HEADS))
    bias = fire_tables()._replace(
        kink_K=jnp.arange(1.0, kinks + 1), slope_KN=segments, offset_KN=segments
    )
    q, pos = content(130)[0], jnp.arange(130)[None]
    assert obstacle(q, q, Tokens(pos), Terms(bias), Mask(), Layout(True, True)) == reason


@pytest.mark.parametrize("platform, compiled", [("cpu", False), ("tpu", True)])
def test_a_tpu_runs_what_mosaic_compiles_and_a_cpu_the_same_step_by_step(platform, compiled):
    """The program is lowered for each platform; `test_tpu_kernel_compile.py` compiles it."""
    x = jax.ShapeDtypeStruct((4, 1, 128, 1, WIDTH), jnp.float32)
    program = jax.jit(functools.partial(by_kernel, None)).trace(x)
    text = program.lower(lowering_platforms=(platform,)).as_text()
    assert ("tpu_custom_call" in text) == compiled


@pytest.mark.ci
def test_decoder_with_kernels_is_the_dense_one():
    """Logits and gradients agree for FIRE-S, log n and a scan over layers."""
    size = ModelSize(num_layers=2, num_heads=1, head_dim=64, hidden_size=64, mlp_size=64,
                     init_std=0.02)  # fmt: skip
    encoding = FIRE(1, 64, train_length=130, hidden_size=64, init_L=40.0)
    tokens, pos = jnp.arange(130)[None] % 7, jnp.arange(130)[None]
    found = []
    for attention in ("dense", "tpu"):
        model = Decoder(
            size,
            (Turn(encoding, log_n=LogN(on="both")),),
            8,
            attention=attention,
            share_position=True,
        )
        if attention == "dense":
            params = jax.jit(model.init)(jax.random.key(0), tokens, pos)["params"]

        def loss(params: Any, model: Decoder = model) -> Any:
            logits: Any = model.apply({"params": params}, tokens, pos)
            return jnp.sum(jnp.sin(logits)), logits

        found.append(jax.jit(jax.grad(loss, has_aux=True))(params))
    (wanted, oracle), (ours, logits) = found
    np.testing.assert_allclose(logits, oracle, atol=1e-5)
    assert_close(ours, wanted, 1e-3)


@pytest.mark.ci
def test_one_program_holds_one_implementation():
    """What runs in blocks equals blockwise attention to the last bit.

    The program of the kernel does not contain blockwise attention.
    """
    encoding = encoding_of("kerple", length=140)
    params, pos = encoding.init(jax.random.key(1)), 2 * jnp.arange(140)[None]
    x = content(140, dtype=jnp.bfloat16)

    def bias(q_pos: jax.Array, k_pos: jax.Array) -> Any:
        return encoding.bias(params, q_pos, k_pos, 140)

    tables = encoding.common_bias(params, 140, 140)
    assert tables is not None
    tokens = Tokens(pos)

    def by_attend(_: Any, x: jax.Array, consecutive: bool = False) -> jax.Array:
        with compiling_for("tpu"):
            terms, layout = Terms(TabulatedBias(bias, tables)), Layout(True, consecutive)
            return attend(x[0], x[1], x[2], tokens, tokens, terms, layout=layout)

    def by_blocks(_: Any, x: jax.Array) -> jax.Array:
        return blockwise_attention(x[0], x[1], x[2], tokens, tokens, Terms(bias), in_order=True)

    (ours, out), (wanted, oracle) = (
        outputs_and_gradients(function, {}, x) for function in (by_attend, by_blocks)
    )
    np.testing.assert_array_equal(out, oracle)
    np.testing.assert_array_equal(ours[1], wanted[1])
    programs = [
        str(jax.make_jaxpr(functools.partial(by_attend, {}, consecutive=consecutive))(x))
        for consecutive in (False, True)
    ]
    assert ["fire_lm_attention" in text for text in programs] == [False, True]
    assert ["remat" in text or "checkpoint" in text for text in programs] == [True, False]


def step_equations(**settings: Any) -> list[tuple[Any, str]]:
    """Return all equations of a training step with FIRE, with "scan" for those in a scan."""
    size = ModelSize(num_layers=3, num_heads=1, head_dim=64, hidden_size=64, mlp_size=64,
                     init_std=0.02)  # fmt: skip
    encoding = FIRE(1, 64, train_length=130, hidden_size=64)
    model = Decoder(size, (Turn(encoding),), 8, attention="tpu", **settings)
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
    """Remat keeps the kernel's output, so each layer runs it once, compiled and interpreted."""
    names = [e.params["name"] for e, _ in step_equations(remat=remat) if "grid_mapping" in e.params]
    assert sorted(names) == [
        *2 * ["fire_lm_attention_backward"],
        *2 * ["fire_lm_attention_forward"],
        "fire_lm_copies_collect",  # a CPU interprets no kernel for the copies
        *2 * ["fire_lm_copies_spread"],
    ]


def loops_with_tables(share_position: bool) -> list[str]:
    """Return where a training step computes psi of all distances: "" (once) or "scan" (layers)."""
    return [
        loop
        for equation, loop in step_equations(remat="full", share_position=share_position)
        if equation.primitive.name == "log1p"
        and [out.aval.shape for out in equation.outvars] == [(130,)]
    ]


@pytest.mark.ci
def test_tables_that_all_layers_share_are_built_once_a_step():
    """FIRE-S builds them once; otherwise each layer does, and again for its backward pass."""
    once, each = loops_with_tables(True), loops_with_tables(False)
    assert set(once) == {""} and set(each) == {"scan"}
    assert len(each) > 1


@pytest.mark.parametrize(
    "name, packed",
    [
        pytest.param("kerple", False, marks=pytest.mark.ci),
        pytest.param("fire_g", True, marks=pytest.mark.slow),
    ],
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
        terms, tokens = Terms(encoding.common_bias(params, 130, 130)), Tokens(pos, segment)
        layout = Layout(True, True, sharding, "tpu")
        return attend(x[0], x[1], x[2], tokens, tokens, terms, layout=layout)

    (ours, out), (wanted, whole) = (
        outputs_and_gradients(functools.partial(attended, sharding), params, content(130))
        for sharding in (split, None)
    )
    assert "tensor" in str(out.sharding)
    np.testing.assert_allclose(out, whole, atol=1e-6)
    assert_close(ours, wanted, 1e-4)
