"""The decoder: sizes and initial values, layers against numpy, remat, and the loss."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from sample_decoders import by_path, filled, shapes_of

from fire_lm.errors import UserError
from fire_lm.models import (
    InfiniAttention,
    ModelSize,
    build_decoder,
    size_125m,
    size_350m,
    token_losses,
)
from fire_lm.models.layers import layer_norm
from fire_lm.models.loss import shift_right
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.nope import NoPE
from fire_lm.sharding import ACTIVATIONS, mesh_of
from fire_lm.training.step import summed_loss

SMALL = ModelSize(2, hidden_size=32, num_heads=4, head_dim=8, mlp_size=128, init_std=0.02)
TARGETS = np.array([[5, 3, 9, 1, 7, 0], [2, 2, 8, 0, 0, 0]], np.int32)


@pytest.mark.parametrize(
    "size, all_parameters, matrices, heads",
    [(size_125m(), 85.1, 84.9, 12), (size_350m(), 302.3, 302.0, 16)],
    ids=["125m", "350m"],
)
def test_parameter_counts(size, all_parameters, matrices, heads):
    """Counts in millions exclude embedding and encoding; the embedding is the only other table."""
    leaves = by_path(shapes_of(build_decoder(size, FIRE, vocab_size=32_128, train_length=2048)))
    own = {name: leaf.size for name, leaf in leaves.items() if "position" not in name}
    assert own.pop("embedding") == 32_128 * size.hidden_size
    assert round(sum(own.values()) / 1e6, 1) == all_parameters
    kernels = sum(count for name, count in own.items() if name.endswith("kernel"))
    assert round(kernels / 1e6, 1) == matrices
    encoding = sum(leaf.size for name, leaf in leaves.items() if "position" in name)
    assert encoding == size.num_layers * (2 + 64 + 33 * 32 + 33 * heads)


def test_initial_values():
    """Weights are N(0, std), divided by sqrt(2 layers) if they write to the residual stream."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    model = build_decoder(SMALL, NoPE, vocab_size=512, train_length=64)
    leaves = by_path(jax.jit(model.init)(jax.random.key(0), tokens, tokens)["params"])
    assert all(leaf.dtype == jnp.float32 for leaf in leaves.values())
    for name, leaf in leaves.items():
        if name.endswith("bias"):
            assert np.all(leaf == 0), name
        elif name.endswith("scale"):
            assert np.all(leaf == 1), name
        else:
            writes = "attention_out" in name or "mlp_out" in name
            expected = 0.02 / math.sqrt(2 * 2) if writes else 0.02
            assert np.std(leaf) == pytest.approx(expected, rel=0.05), name
            assert abs(np.mean(leaf)) < 0.1 * expected, name
    query = leaves["layers/query/kernel"]
    assert np.all(query[0] != query[1]), "layers start from different values"


def test_layer_norm_is_the_formula():
    x, scale, bias = np.random.default_rng(0).normal(3, 2, (3, 4, 8, 16)).astype(np.float32)
    scale, bias = scale[0, 0], bias[0, 0]
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    expected = expected * scale + bias
    ours = layer_norm(*map(jnp.asarray, (x, scale, bias)))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    # With statistics in bfloat16, 1000 and 1001 would be indistinguishable.
    far = jnp.asarray(1000 + 8 * x, jnp.bfloat16)
    spread = np.std(layer_norm(far, jnp.ones(16), jnp.zeros(16)).astype(jnp.float32))
    assert spread == pytest.approx(1, abs=0.02)


@pytest.mark.ci
def test_no_gradient_of_a_bfloat16_model_is_rounded_to_bfloat16():
    """Gradients of kernels and biases are float32, and so is their sum over the mesh."""
    model = build_decoder(SMALL, FIRE, 32, train_length=64, dtype="bfloat16")
    targets = jnp.asarray(np.random.default_rng(0).integers(1, 32, (4, 64)), jnp.int32)
    given = (model, targets, jnp.ones_like(targets), jnp.arange(64)[None], 0.0)
    gradients = jax.jit(jax.grad(lambda p: summed_loss(p, *given)[0]))(filled(model))
    for path, leaf in by_path(gradients).items():
        values = leaf[leaf != 0]  # a ReLU of FIRE may be inactive everywhere
        rounded = values == values.astype(jnp.bfloat16).astype(jnp.float32)
        assert leaf.size < 16 or np.mean(np.asarray(rounded)) < 0.5, path


def test_an_embedding_with_parameters_must_be_shared():
    @dataclasses.dataclass(frozen=True)
    class Shift(PositionalEncoding):
        def init(self, rng):
            return {"shift": jnp.zeros(SMALL.hidden_size)}

        def embed(self, params, x_BTD, pos_BT):
            return x_BTD + params["shift"][None, None].astype(x_BTD.dtype)

    with pytest.raises(UserError, match="set build_decoder.share_position = True"):
        build_decoder(SMALL, Shift, 32, train_length=64)
    model = build_decoder(SMALL, Shift, 32, train_length=64, share_position=True)
    assert "shift" in shapes_of(model)["position"]


def remat_loss_and_gradient(remat: Any, kind: Any, length: int = 64) -> Any:
    model = build_decoder(SMALL, kind, 32, train_length=64, dtype="float32", remat=remat)
    targets = jnp.asarray(np.random.default_rng(0).integers(1, 32, (2, length)), jnp.int32)
    given = (model, targets, jnp.ones_like(targets), jnp.arange(length)[None], 0.0)

    def loss(params: Any) -> jax.Array:
        return summed_loss(params, *given)[0] / targets.size

    compiled = jax.jit(jax.value_and_grad(loss)).lower(shapes_of(model)).compile()
    return compiled, compiled(filled(model))


@pytest.mark.ci
def test_remat_changes_memory_not_results():
    """'full' keeps no more memory than 'dots', which keeps less than 'none'.

    Memory is measured with ALiBi: in a model this small, FIRE's own exceeds that of the
    activations.
    """
    policies = ("none", "dots", "full")
    runs = {remat: remat_loss_and_gradient(remat, FIRE) for remat in policies}
    _, expected = runs["none"]
    for remat in ("dots", "full"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
            runs[remat][1],
            expected,
        )
    plain = {remat: remat_loss_and_gradient(remat, ALiBi)[0] for remat in policies}
    kept = {k: run.memory_analysis().temp_size_in_bytes for k, run in plain.items()}
    assert kept["full"] <= kept["dots"] < 0.9 * kept["none"], kept


@pytest.mark.ci
@pytest.mark.parametrize(
    "options, kept",
    [
        ({"dropout": 0.2, "attention_dropout": 0.2}, set()),
        ({"mixer": InfiniAttention(4, "delta")}, {"memory_norm/layer_0", "memory_share/layer_1"}),
    ],
    ids=["dropout", "infini"],
)
def test_a_mesh_and_remat_change_nothing(options, kept):
    """Loss, gradients and diagnostics are equal on four devices that recompute every layer."""
    plain = build_decoder(SMALL, FIRE, 32, train_length=16, dtype="float32", **options)
    rows = jnp.asarray(np.random.default_rng(2).integers(1, 32, (4, 14)), jnp.int32)
    segment = jnp.asarray([[1] * 5 + [2] * 9] * 4, jnp.int32)
    args = (rows, jnp.ones_like(rows), jnp.arange(14)[None], 0.0, segment, jax.random.key(5))
    mesh = mesh_of((2, 1, 2), jax.devices()[:4])
    sharded = plain.clone(activation_sharding=NamedSharding(mesh, ACTIVATIONS), remat="full")
    measure = jax.jit(jax.value_and_grad(summed_loss, has_aux=True), static_argnums=1)
    expected, found = (measure(filled(plain), model, *args) for model in (plain, sharded))
    assert kept <= set(expected[0][1][1])
    close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)
    jax.tree.map(close, found, expected)


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.ci)])
def test_layers_written_out_compute_what_a_loop_does(remat):
    runs = []
    for scan_layers in (True, False):
        model = build_decoder(
            SMALL, ALiBi, 32, train_length=64, dtype="float32", remat=remat, scan_layers=scan_layers
        )

        def loss(params: Any, model: Any = model) -> jax.Array:
            targets, weights = jnp.asarray(TARGETS), jnp.asarray(TARGETS != 0)
            return summed_loss(params, model, targets, weights, jnp.arange(6)[None], 0.0)[0]

        lowered = jax.jit(jax.value_and_grad(loss)).lower(shapes_of(model))
        assert ("stablehlo.while" in lowered.as_text()) == scan_layers
        runs.append(lowered.compile()(filled(model)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *runs)


def test_logits_are_float32_in_a_bfloat16_model():
    model = build_decoder(SMALL, ALiBi, 32, train_length=64)
    assert model.dtype == jnp.bfloat16
    tokens = jnp.asarray(TARGETS)
    params = filled(model)
    logits = jax.jit(model.apply)({"params": params}, tokens, tokens[:1])
    assert logits.dtype == jnp.float32 and logits.shape == (2, 6, 32)
    assert np.any(logits != logits.astype(jnp.bfloat16).astype(jnp.float32)), "not merely cast"


def test_input_is_the_target_shifted_right():
    np.testing.assert_array_equal(
        shift_right(jnp.asarray(TARGETS)), [[0, 5, 3, 9, 1, 7], [0, 2, 2, 8, 0, 0]]
    )


def test_loss_is_a_sum_over_what_has_weight():
    """The sum equals numpy's from the model's own logits; tokens of weight 0 do not matter."""
    model = build_decoder(SMALL, ALiBi, 32, train_length=64, dtype="float32")
    params, targets = filled(model), jnp.asarray(TARGETS)
    scored = TARGETS != 0
    scored[0, 1] = False  # a token of text that is read but not scored

    def everything(params: Any) -> Any:
        pos = jnp.arange(6)[None]
        logits = model.apply({"params": params}, shift_right(targets), pos)
        weights = jnp.asarray(scored.astype(np.int8))
        summed = summed_loss(params, model, targets, weights, pos, z_loss=0.5)
        return logits, token_losses(model, params, targets, pos), summed

    logits, (nll, log_z), (objective, (total, _)) = jax.jit(everything)(params)
    wide = np.asarray(logits, np.float64)
    expected_z = np.log(np.sum(np.exp(wide), axis=-1))
    at_target = np.take_along_axis(wide, TARGETS[:, :, None], axis=-1)[:, :, 0]
    np.testing.assert_allclose(log_z, expected_z, rtol=1e-5)
    np.testing.assert_allclose(nll, expected_z - at_target, rtol=1e-4, atol=1e-5)
    assert total == pytest.approx(np.sum((expected_z - at_target)[scored]), rel=1e-5)
    assert total != pytest.approx(np.sum(expected_z - at_target), rel=1e-2)
    z_term = 0.5 * np.sum(expected_z[scored] ** 2)
    assert objective - total == pytest.approx(z_term, rel=1e-5) and z_term > 1
