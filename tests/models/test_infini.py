"""Infini-attention: its formulas against a reference, its limits, and what a token can see."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from infini_reference import mixed_row
from sample_decoders import shapes_of

from fire_lm.attention import Implementation, Mask
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.measures.probes import interpolated
from fire_lm.models import InfiniAttention, Layers, ModelSize, build_decoder, layer_rows
from fire_lm.models.comparison import same_meaning
from fire_lm.models.layer_position import Position
from fire_lm.models.mixers import Attention, LayerSpec, Mixer, Reading
from fire_lm.models.mixers.infini_memory import cut_rows, features, memories, retrieved
from fire_lm.models.segments import segment_positions
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.nope import NoPE
from fire_lm.sharding import MeshShape, abstract_mesh, with_shardings
from fire_lm.training import AdamW
from fire_lm.training.step import updates_of
from fire_lm.training.summary import model_flops_per_token

SIZE = ModelSize(1, hidden_size=6, num_heads=2, head_dim=3, mlp_size=4, init_std=0.5)
LENGTH, TOKENS = 11, 4  # the last segment is short
ALIBI = ALiBi(num_heads=2, head_dim=3, train_length=16, hidden_size=6)
PACKED = np.array([[1] * 11, [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3]], np.int32)
RNG = np.random.default_rng(0)
Y = RNG.normal(0, 1, (2, LENGTH, 6)).astype(np.float32)


class OneMixer(nn.Module):
    """A mixer that is not in a layer."""

    mixer: Mixer
    attention: Implementation = "dense"

    @nn.compact
    def __call__(self, y_BTD: jax.Array, segment_BT: jax.Array | None = None) -> jax.Array:
        spec = LayerSpec(SIZE, ALIBI, Mask(), None, self.attention, consecutive=True)
        pos = jnp.arange(y_BTD.shape[1])[None]
        if segment_BT is not None:
            pos = segment_positions(pos, segment_BT)
        return self.mixer(self, spec, y_BTD, Reading(pos, segment_BT), Position({}, None))[0]


@functools.cache
def parameters() -> Any:
    shapes = jax.eval_shape(OneMixer(InfiniAttention(4)).init, jax.random.key(0), Y)["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.float32(rng.normal(0, 0.7, leaf.shape)), shapes)


def gated(gate: float) -> Any:
    return {**parameters(), "mixer_gate": jnp.full(2, gate, jnp.float32)}


def output(mixer: Mixer, params: Any, y: Any = Y, segment: Any = None) -> np.ndarray:
    """Return a mixer's output; a program runs it, as in a model."""
    return np.asarray(jax.jit(OneMixer(mixer).apply)({"params": params}, y, segment))


@pytest.mark.ci
@pytest.mark.parametrize(
    "rule, backward, packed",
    [("linear", None, True), ("linear", 2, False), ("delta", None, False), ("delta", 2, True)],
)
def test_outputs_and_gradients_are_those_of_the_reference(rule, backward, packed):
    """Gradients are compared in random directions in each array."""
    module = OneMixer(InfiniAttention(TOKENS, rule, backward_segments=backward))
    factors, segment = RNG.normal(0, 1, Y.shape), jnp.asarray(PACKED) if packed else None
    stops = range(0, 99, backward) if backward else ()
    documents = PACKED if packed else np.ones_like(PACKED)

    @jax.jit
    def measured(params: Any, y: jax.Array) -> Any:
        def loss(params: Any, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = module.apply({"params": params}, y, segment)
            return jnp.sum(out * factors.astype(np.float32)), out

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, y)

    (_, out), gradients = measured(parameters(), Y)
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), (parameters(), Y))
    own = list(zip(wide[1], documents, strict=True))
    rows = [mixed_row(wide[0], y, ids, TOKENS, rule, stops) for y, ids in own]
    np.testing.assert_allclose(out, np.stack([row for row, _ in rows]), atol=1e-5)

    def loss_at(inputs: Any) -> float:
        return sum(
            np.sum(weights * mixed_row(inputs[0], y, ids, TOKENS, rule, stops, constants)[0])
            for y, ids, weights, (_, constants) in zip(
                inputs[1], documents, factors, rows, strict=True
            )
        )

    leaves, structure = jax.tree.flatten(wide)
    for index, gradient in enumerate(jax.tree.leaves(gradients)):
        for _ in range(2):
            direction = RNG.normal(0, 1, gradient.shape)
            ends = []
            for step in (1e-5, -1e-5):
                moved = [x + step * direction if i == index else x for i, x in enumerate(leaves)]
                ends.append(loss_at(jax.tree.unflatten(structure, moved)))
            expected, found = (ends[0] - ends[1]) / 2e-5, np.sum(gradient * direction)
            assert found == pytest.approx(
                expected, abs=1e-5 * max(1.0, float(np.abs(gradient).sum()))
            )


@pytest.mark.ci
def test_the_linear_rule_does_not_depend_on_the_cut():
    """Behind a border that two cuts share, both memories are the same."""
    k, v, q = (jnp.float32(RNG.normal(0, 1, (1, 24, 2, 3))) for _ in range(3))

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def read(rule: Any, tokens: int) -> jax.Array:
        s, values, queries = (x.reshape(1, -1, tokens, 2, 3) for x in (features(k), v, features(q)))
        memory = memories(rule, s, values, cut_rows(None, 24, tokens))
        return retrieved(memory, queries).reshape(24, 2, 3)[12:14]

    np.testing.assert_allclose(read("linear", 2), read("linear", 6), atol=1e-5)
    np.testing.assert_allclose(read("linear", 2), read("linear", 12), atol=1e-5)
    assert np.abs(read("delta", 2) - read("delta", 6)).max() > 1e-2


@pytest.mark.ci
def test_one_segment_is_plain_attention():
    params = parameters()
    plain = {name: own for name, own in params.items() if name != "mixer_gate"}
    for segment in (None, jnp.asarray(PACKED)):
        expected = output(Attention(), plain, segment=segment)
        for tokens in (LENGTH, 64):
            found = output(InfiniAttention(tokens), params, segment=segment)
            np.testing.assert_array_equal(found, expected)
    first = output(InfiniAttention(TOKENS), params)[:, :TOKENS]
    np.testing.assert_allclose(first, output(Attention(), plain)[:, :TOKENS], atol=1e-6)


@pytest.mark.ci
def test_a_gate_at_its_limits():
    """The gate leaves either local attention or the memory, exactly."""
    mixer = InfiniAttention(TOKENS)
    half, local, memory = (output(mixer, gated(gate)) for gate in (0.0, -np.inf, np.inf))
    later = slice(TOKENS, None)
    np.testing.assert_allclose(half[:, later], (local + memory)[:, later] / 2, atol=1e-5)
    forgetful = np.concatenate(
        [output(mixer, gated(-np.inf), Y[:, a : a + TOKENS]) for a in range(0, LENGTH, TOKENS)], 1
    )
    np.testing.assert_allclose(local, forgetful, atol=1e-5)  # ALiBi is translation invariant
    # A token that reads the memory alone depends only on its own query and on earlier segments.
    changed = Y.copy()
    changed[:, TOKENS : TOKENS + 2] += 1
    other = output(mixer, gated(np.inf), changed)
    np.testing.assert_array_equal(other[:, TOKENS + 2 : 2 * TOKENS], memory[:, 6:8])
    assert np.abs(other[:, 2 * TOKENS :] - memory[:, 2 * TOKENS :]).max() > 1e-3


def reached(mixer: Mixer, segment_T: np.ndarray) -> np.ndarray:
    """Return whether each output depends on each input, bool `[T, T]`."""
    module, params = OneMixer(mixer), parameters()
    segment = jnp.asarray(segment_T)[None]

    def out(y: jax.Array) -> jax.Array:
        return module.apply({"params": params}, y[None], segment)[0]

    return np.abs(jax.jit(jax.jacrev(out))(Y[0])).max((1, 3)) > 0


@pytest.mark.ci
@pytest.mark.parametrize("rule", ["linear", "delta"])
def test_a_token_depends_on_its_document_up_to_itself(rule):
    """A token depends on all earlier tokens of its document, and on nothing else."""
    for documents in (np.ones(LENGTH, np.int32), PACKED[1]):
        same = documents[:, None] == documents[None]
        expected = np.tril(same)
        np.testing.assert_array_equal(reached(InfiniAttention(TOKENS, rule), documents), expected)
    local = reached(InfiniAttention(TOKENS, rule, backward_segments=1), documents)
    place = np.arange(LENGTH) // TOKENS
    np.testing.assert_array_equal(local, expected & (place[:, None] == place[None]))


@pytest.mark.ci
def test_a_document_that_begins_at_a_border_is_read_as_if_alone():
    mixer = InfiniAttention(TOKENS, "delta")
    segment = np.array([[1] * 4 + [2] * 7] * 2, np.int32)
    packed = output(mixer, parameters(), segment=jnp.asarray(segment))
    alone = output(mixer, parameters(), np.pad(Y[:, 4:], ((0, 0), (0, 4), (0, 0))))
    np.testing.assert_allclose(packed[:, 4:], alone[:, :7], atol=1e-6)


@pytest.mark.ci
def test_blockwise_attention_computes_the_same():
    """Also where windows let it skip keys, and for packed rows, whose positions differ."""
    y = jnp.float32(RNG.normal(0, 1, (2, 300, 6)))
    segment = jnp.asarray(np.repeat([[1, 2, 3], [1, 1, 2]], [100, 70, 130], axis=1))
    for documents in (None, segment):
        of_dense, of_blocks = (
            jax.jit(OneMixer(InfiniAttention(70), attention).apply)(
                {"params": parameters()}, y, documents
            )
            for attention in ("dense", "blockwise")
        )
        np.testing.assert_allclose(of_dense, of_blocks, atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("rule", ["linear", "delta"])
def test_a_thousand_segments_are_finite_in_bfloat16(rule):
    y = jnp.asarray(3 * RNG.normal(0, 1, (1, 2001, 6)), jnp.bfloat16)
    module = OneMixer(InfiniAttention(2, rule))

    @jax.jit
    def measured(params: Any, y: jax.Array) -> Any:
        def loss(params: Any, y: jax.Array) -> jax.Array:
            return jnp.sum(jnp.square(module.apply({"params": params}, y).astype(jnp.float32)))

        return jax.value_and_grad(loss, (0, 1))(params, y)

    found = jax.tree.leaves(measured(parameters(), y))
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in found)
    memory = jax.eval_shape(
        lambda k: memories(rule, features(k), k, cut_rows(None, 6, 2)),
        jnp.zeros((1, 3, 2, 2, 3), jnp.bfloat16),
    )
    assert {x.dtype for x in memory} == {jnp.dtype(jnp.float32)}


@pytest.mark.ci
def test_an_empty_memory_and_vanishing_features_give_no_nan():
    k = jnp.full((1, 3, 2, 1, 3), -200.0)  # exp(-200) is 0 in float32

    def total(k: jax.Array) -> jax.Array:
        s = features(k)
        memory = memories("delta", s, jnp.ones_like(k), cut_rows(None, 6, 2))
        return jnp.sum(retrieved(memory, s))

    value, gradient = jax.jit(jax.value_and_grad(total))(k)
    assert value == 0 and np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"segment": 0}, "InfiniAttention.segment is 0: it must be a positive integer"),
        ({"segment": 4, "backward_segments": 0}, "backward_segments is 0: it must be a positive"),
        ({"segment": 4, "rule": "sum"}, "rule is 'sum': it must be 'linear' or 'delta'"),
        ({"segment": 4, "gate_init": float("inf")}, "gate_init is inf: it must be finite"),
    ],
)
def test_invalid_fields_are_refused(changed, words):
    with pytest.raises(UserError, match=words):
        InfiniAttention(**changed)


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="window = 8 has no effect on layers with InfiniAttention"):
        Layers(NoPE, mixer=InfiniAttention(4), window=8)
    with pytest.raises(UserError, match="window = 8 has no effect"):
        build_decoder(SIZE, Layers(NoPE, window=8), 32, 16, mixer=InfiniAttention(4))
    with pytest.raises(UserError, match="build_decoder.mixer = InfiniAttention has no effect"):
        layers = Layers(NoPE, mixer=Attention(sink=True))
        build_decoder(SIZE, layers, 32, 16, mixer=InfiniAttention(4))


@pytest.mark.ci
def test_gin_files_and_tables_know_the_mixer(tmp_path):
    """Also: every mesh has a place for the gates, and the layers see all tokens."""
    files = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]
    config = load_experiment([*files, "configs/mixers/infini_delta.gin"])
    model, optimizer = config.model, config.train.optimizer
    (turn,) = model.turns
    assert turn.mixer == InfiniAttention(64, "delta") and isinstance(turn.encoding, FIRE)
    assert optimizer.gate_learning_rate is not None
    (tmp_path / "saved.gin").write_text(config.text())
    for each in (config, load_experiment([str(tmp_path / "saved.gin")])):
        assert each.label == "fire-mixer-InfiniAttention-segment-64-rule-delta"
        assert each.model == model
    shapes = shapes_of(model)
    assert shapes["layers"]["mixer_gate"].shape == (3, model.size.num_heads)
    with_shardings(shapes, abstract_mesh(MeshShape()))
    width = model.size.num_heads * model.size.head_dim
    flops = [model_flops_per_token(model, shapes, length) for length in (64, 512)]
    assert flops[1] - flops[0] == 12 * 3 * width * 1.5 * model.size.head_dim
    ((_, encoding, options, sees, _),) = layer_rows(model, shapes)
    assert (encoding, sees) == ("FIRE", "all tokens") and "segments of 64 (delta)" in options


def test_a_source_with_plain_attention_has_the_same_encoding():
    plain, infini = (
        build_decoder(SIZE, FIRE, 32, 16, mixer=mixer)
        for mixer in (Attention(), InfiniAttention(4))
    )

    @dataclasses.dataclass(frozen=True)
    class Still(Mixer):
        pass

    assert same_meaning(plain, infini)
    assert not same_meaning(plain, build_decoder(SIZE, ALiBi, 32, 16, mixer=InfiniAttention(4)))
    assert not same_meaning(plain, build_decoder(SIZE, Layers(NoPE, mixer=Still()), 32, 16))


def test_a_report_looks_for_no_attention_scores():
    plain, infini = (
        build_decoder(SIZE, ALiBi, 32, 16, mixer=mixer)
        for mixer in (Attention(), InfiniAttention(4))
    )
    assert interpolated(plain) is not None and interpolated(infini) is None


def test_flops_count_the_memory_as_keys():
    """A head dim of 3 counts as 3 keys, or 4.5 by the delta rule."""
    assert InfiniAttention(4).keys_per_token(Mask(), 4, head_dim=3) == 4
    assert InfiniAttention(4).keys_per_token(Mask(), 5, head_dim=3) == 4 + 3
    assert InfiniAttention(4, "delta").keys_per_token(Mask(), 1000, head_dim=3) == 4 + 4.5


@pytest.mark.ci
def test_gates_have_their_own_learning_rate_and_no_decay():
    params = {"layers": {"mixer_gate": jnp.ones(2), "query": {"kernel": jnp.ones((2, 2))}}}
    gradient = jax.tree.map(jnp.ones_like, params)
    rates = {"learning_rate": 1e-3, "warmup_steps": 0, "weight_decay": 0.5}
    moves = []
    for own in (None, 1e-2):
        optimizer = AdamW(**rates, gate_learning_rate=own).build(10)
        updates, _ = updates_of(optimizer, gradient, optimizer.init(params), params, None)
        moves.append(jax.tree.map(lambda x: float(x.ravel()[0]), updates["layers"]))
    (plain, own) = moves
    assert own["query"] == plain["query"]
    assert plain["mixer_gate"] == pytest.approx(-1e-3, rel=1e-3)  # no decay
    assert own["mixer_gate"] == pytest.approx(-1e-2, rel=1e-3)
    with pytest.raises(UserError, match="gate_learning_rate has no effect"):
        AdamW(**rates, gate_learning_rate=1e-2).build(10).init({"kernel": jnp.ones(2)})
    with pytest.raises(UserError, match="gate_learning_rate is -1"):
        AdamW(gate_learning_rate=-1)
