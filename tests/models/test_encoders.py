"""Encoders against a reference in numpy float64 that is written from the papers' formulas.

Shapes: T tokens, N heads, H head dim, D model.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fire_lm import models, positions
from fire_lm.errors import UserError
from fire_lm.measures.continuation_scores import continuation_scores
from fire_lm.measures.text_probes import text_logits, text_losses
from fire_lm.models import Layers, ModelSize, build_decoder, build_encoder
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fox import FoX
from fire_lm.positions.log_n import LogN
from fire_lm.positions.t5 import T5
from fire_lm.positions.together import Together
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.training.step import documents, init_state, summed_loss, train_step

HEADS, HEAD_DIM, WIDTH, VOCAB, TRAINED_AT = 2, 8, 16, 11, 8
SIZE = ModelSize(
    num_layers=2, hidden_size=WIDTH, num_heads=HEADS, head_dim=HEAD_DIM, mlp_size=32, init_std=0.3
)
LENGTH = 20
# Two rows: a document of 12 tokens before padding; documents of 7 and 13 tokens.
SEGMENTS = np.array([[1] * 12 + [0] * 8, [1] * 7 + [2] * 13])
QUICK = ["NoPE", "T5", "FIRE", "RoPE", "Learned"]
IN_CI = ["ALiBi", "KERPLELog", "Sandwich", "Sinusoidal"]


def kind_of(name: str) -> Any:
    kind: Any = positions.encodings()[name]
    if name == "Learned":
        return functools.partial(kind, max_length=LENGTH)
    return functools.partial(kind, num_buckets=8, max_distance=10) if name == "T5" else kind


def encoder(kind: Any, **options: Any) -> Any:
    shared = getattr(kind, "func", None) is positions.encodings()["Learned"]
    decoder = build_decoder(
        *(SIZE, kind, VOCAB, TRAINED_AT), dtype="float32", share_position=shared, **options
    )
    return build_encoder(decoder)


@functools.cache
def parameters(name: str) -> Any:
    tokens = jnp.zeros((1, 1), jnp.int32)
    return jax.jit(encoder(kind_of(name)).init)(jax.random.key(1), tokens, tokens)["params"]


def tokens_of(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCAB, SEGMENTS.shape).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def apply(model: Any, params: Any, *inputs: Any) -> Any:
    """Return the logits; equal models share a program."""
    return model.apply({"params": params}, *inputs)


def logits(model: Any, params: Any, tokens: np.ndarray, segments: np.ndarray | None) -> np.ndarray:
    """Return the logits of rows whose documents each begin at position 0."""
    segment_BT = None if segments is None else jnp.asarray(segments)
    pos_BT = jnp.arange(tokens.shape[1])[None]
    if segment_BT is not None:
        pos_BT = models.segment_positions(pos_BT, segment_BT)
    return np.asarray(apply(model, params, tokens, pos_BT, segment_BT))


# --- The reference, for one document --------------------------------------------------------------


def bucket(relative: int, buckets: int, furthest: int) -> int:
    """Return T5's bucket of key - query, as in mesh_tensorflow's `_relative_position_bucket`."""
    half, n = buckets // 2, abs(relative)
    first = half if relative > 0 else 0
    exact = half // 2
    if n < exact:
        return first + n
    log = math.log(n / exact) / math.log(furthest / exact) * (half - exact)
    return first + min(half - 1, exact + int(log + 1e-9))


def bias_of(name: str, position: Any, length: int) -> np.ndarray:
    """Return the bias of a layer, `[N, T, T]`, from the layer's parameters."""
    i, j = np.arange(length)[:, None], np.arange(length)[None]
    distance = np.abs(i - j)
    if name == "ALiBi":
        return -np.array([2.0**-4, 2.0**-8])[:, None, None] * distance
    if name == "KERPLELog":
        p, a = (np.asarray(position[key])[:, None, None] for key in ("p", "a"))
        return -p * np.log1p(a * distance)
    if name == "Sandwich":
        frequency = 1 / 10_000.0 ** (np.arange(1, 65) / 64)
        cosines = np.cos(distance[..., None] * frequency).sum(axis=-1)
        return cosines / np.array([8 * head / HEADS for head in (1, 2)])[:, None, None]
    if name == "T5":
        table = np.asarray(position["table"])
        bucket_TS = np.array([[bucket(s - t, 8, 10) for s in range(length)] for t in range(length)])
        return np.moveaxis(table[bucket_TS], -1, 0)
    if name == "FIRE":  # Appendix E: the query's index in the normaliser, whatever the key
        c, L = abs(float(position["c"])), abs(float(position["L_multiplier"]) * TRAINED_AT / 4)
        x = np.log1p(c * distance) / (np.log1p(c * np.maximum(i, L)) + 1e-6)
        hidden = x[..., None]
        for layer in range(3):
            dense = position["mlp"][f"dense_{layer}"]
            hidden = hidden @ np.float64(dense["kernel"]) + np.float64(dense["bias"])
            hidden = np.maximum(hidden, 0) if layer < 2 else hidden
        return np.moveaxis(hidden, -1, 0)
    return np.zeros((HEADS, length, length))


def turned(x_TNH: np.ndarray) -> np.ndarray:
    """Return RoPE's rotation of the halves of heads, as complex numbers."""
    half = HEAD_DIM // 2
    angle = np.arange(len(x_TNH))[:, None] / 10_000.0 ** (np.arange(half) / half)
    z = (x_TNH[..., :half] + 1j * x_TNH[..., half:]) * np.exp(1j * angle)[:, None]
    return np.concatenate([z.real, z.imag], axis=-1)


def norm(x: np.ndarray, params: Any) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * params["scale"] + params["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def embedded(name: str, params: Any, tokens: np.ndarray) -> np.ndarray:
    x_TD = params["embedding"][tokens]
    if name == "Learned":
        return x_TD + params["position"]["embedding"][: len(tokens)]
    if name == "Sinusoidal":
        angle = np.arange(len(tokens))[:, None] / 10_000.0 ** (np.arange(0, WIDTH, 2) / WIDTH)
        waves = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(len(tokens), WIDTH)
        return math.sqrt(WIDTH) * x_TD + waves
    return x_TD


def reference(name: str, params: Any, tokens: np.ndarray, log_n: bool = False) -> np.ndarray:
    """Return the logits of one document, `[T, V]` float64."""
    params = jax.tree.map(np.float64, params)
    x_TD = embedded(name, params, tokens)
    for layer in range(SIZE.num_layers):
        own = jax.tree.map(lambda x, layer=layer: x[layer], params["layers"])
        y_TD = norm(x_TD, own["attention_norm"])
        q, k, v = (
            np.einsum("td,dnh->tnh", y_TD, own[key]["kernel"]) + own[key]["bias"]
            for key in ("query", "key", "value")
        )
        if name == "RoPE":
            q, k = turned(q), turned(k)
        products = np.einsum("tnh,snh->nts", q, k) / math.sqrt(HEAD_DIM)
        if log_n:
            products = products * math.log(len(tokens)) / math.log(TRAINED_AT)
        scores = products + bias_of(name, own.get("position"), len(tokens))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("nts,snh->tnh", weights, v)
        out = own["attention_out"]
        x_TD = x_TD + np.einsum("tnh,nhd->td", mixed, out["kernel"]) + out["bias"]
        hidden = gelu(norm(x_TD, own["mlp_norm"]) @ own["mlp_in"]["kernel"] + own["mlp_in"]["bias"])
        x_TD = x_TD + hidden @ own["mlp_out"]["kernel"] + own["mlp_out"]["bias"]
    return norm(x_TD, params["final_norm"]) @ params["embedding"].T


# --- Tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["dense", pytest.param("blockwise", marks=pytest.mark.ci)])
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.ci) for n in IN_CI)])
def test_logits_are_the_reference_for_documents_and_padding(name, attention):
    tokens, params = tokens_of(), parameters(name)
    ours = logits(encoder(kind_of(name), attention=attention), params, tokens, SEGMENTS)
    documents = [(0, slice(0, 12)), (1, slice(0, 7)), (1, slice(7, 20))]
    for row, place in documents:
        expected = reference(name, params, tokens[row, place])
        np.testing.assert_allclose(ours[row, place], expected, rtol=0, atol=1e-5 * 20)


def test_the_reference_is_not_causal():
    model, params, tokens = encoder(kind_of("FIRE")), parameters("FIRE"), tokens_of()[:1]
    turns = tuple(dataclasses.replace(turn, causal=True) for turn in model.turns)
    causal = logits(model.clone(turns=turns), params, tokens, None)[0]
    assert np.max(np.abs(causal - reference("FIRE", params, tokens[0]))[:-1]) > 0.1


@pytest.mark.parametrize("name", ["RoPE", "FIRE"])
def test_log_n_counts_all_tokens_of_the_document(name):
    tokens, params = tokens_of(), parameters(name)
    ours = logits(encoder(kind_of(name), log_n=LogN()), params, tokens, SEGMENTS)
    expected = reference(name, params, tokens[1, 7:], log_n=True)
    np.testing.assert_allclose(ours[1, 7:], expected, rtol=0, atol=2e-4)
    assert np.max(np.abs(expected - reference(name, params, tokens[1, 7:]))) > 0.05


@pytest.mark.parametrize("name", ["NoPE", "FIRE", "RoPE", "Learned"])  # no hook, and each of three
def test_tokens_of_other_documents_and_padding_change_nothing(name):
    """Every token of a document changes all others of it, and nothing else, in values."""
    model, params, tokens = encoder(kind_of(name)), parameters(name), tokens_of()
    before = logits(model, params, tokens, SEGMENTS)
    for row, place in ((0, 15), (1, 3), (1, 19)):
        changed = tokens.copy()
        changed[row, place] = changed[row, place] % (VOCAB - 1) + 1
        moved = np.any(logits(model, params, changed, SEGMENTS) != before, axis=-1)
        same_document = np.zeros_like(moved)
        same_document[row] = SEGMENTS[row] == SEGMENTS[row, place]
        np.testing.assert_array_equal(moved, same_document)


def test_nope_reads_a_bag_of_tokens():
    """Without an encoding, an encoder permutes its output with its input; with RoPE it does not."""
    order, tokens = np.random.default_rng(3).permutation(LENGTH), tokens_of()[:1]
    for name, is_bag in (("NoPE", True), ("RoPE", False)):
        model, params = encoder(kind_of(name)), parameters(name)
        straight, mixed = (logits(model, params, t, None) for t in (tokens, tokens[:, order]))
        assert np.allclose(straight[:, order], mixed, atol=1e-4) == is_bag


def test_the_arguments_of_later_keys_exceed_1():
    name = "FIRE"
    position = jax.tree.map(lambda x: x[0], parameters(name)["layers"]["position"])
    fire = encoder(FIRE).encodings[0]
    pos = jnp.arange(60)[None]
    ours = np.asarray(fire.bias(position, pos, pos, 60))[0]
    np.testing.assert_allclose(ours, bias_of(name, position, 60), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "fields, L",
    [
        ({}, 1.0),
        ({}, 0.0),
        ({"normalizer_limit": 8}, 0.1),
        ({"threshold": False, "query_index_offset": 1}, None),
    ],
)
def test_hinges_of_fire_are_its_mlp_at_all_arguments(fields, L):
    """Values and gradients agree with the MLP's, also if the first queries' normaliser is tiny."""
    causal = FIRE(2, 8, 16, 16, **fields)
    encoding, pos_BT = causal.bidirectional(), jnp.arange(40)[None]
    params = encoding.init(jax.random.key(2))
    params = {**params, "mlp": jax.tree.map(lambda x: 2 * x, params["mlp"])}
    if L is not None:
        params["L_multiplier"] = jnp.float32(L)
    assert encoding.diagnostics(params)["fire_dense"] == 0
    weights = jax.random.normal(jax.random.key(3), (1, 2, 40, 40))

    def weighted(bias):
        def total(params):
            return jnp.sum(weights * bias(params)), bias(params)

        return jax.jit(jax.value_and_grad(total, has_aux=True))

    (_, ours), gradient = weighted(lambda p: encoding.bias(p, pos_BT, pos_BT, 40))(params)
    (_, plain), expected = weighted(lambda p: causal.bias_of_prepared(p, pos_BT, pos_BT))(params)
    np.testing.assert_allclose(ours, plain, atol=1e-6 * np.ptp(plain))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * np.max(np.abs(b)))


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("XPos", {}, "XPos makes q·k grow"),
        ("FoX", {}, "FoX has forget gates"),
        (functools.partial(Together, first=FIRE, second=FoX), {}, "FoX has forget gates"),
        (functools.partial(T5, num_buckets=6), {}, "must be a multiple of 4"),
        (functools.partial(FIRE, threshold=False), {}, "FIRE.query_index_offset is 0"),
        ("RoPE", {"attention": "tpu"}, "for causal attention only"),
    ],
)
def test_what_has_no_bidirectional_form_is_refused(kind, options, message):
    kind = positions.encodings()[kind] if isinstance(kind, str) else kind
    with pytest.raises(UserError, match=message):
        encoder(kind, **options)


def test_encodings_in_the_same_layer_each_take_their_form():
    both = encoder(functools.partial(Together, first=FIRE, second=T5)).encodings[0]
    assert both.parts == {
        name: kind(HEADS, HEAD_DIM, TRAINED_AT, WIDTH).bidirectional()
        for name, kind in (("first", FIRE), ("second", T5))
    }


def test_an_encoder_cannot_generate_or_score_a_text_by_tokens():
    model, prompt = encoder(kind_of("NoPE")), jnp.ones((1, 3), jnp.int32)
    with pytest.raises(UserError, match="cannot generate text"):
        model.prefill(prompt, jnp.arange(3)[None], jnp.array([3]), 5)
    ids, mesh = np.ones(3, np.int32), make_mesh(MeshShape())
    for score in (
        lambda: text_logits(model, {}, ids),
        lambda: text_losses(model, {}, ids),
        lambda: next(continuation_scores(model, {}, [([1], [2])], mesh)),
    ):
        with pytest.raises(UserError, match="nor score it token by token"):
            score()


def test_windows_look_both_ways():
    kind = Layers(kind_of("NoPE"), window=3)
    model, params, tokens = encoder(kind), parameters("NoPE"), tokens_of()[:1]
    changed = tokens.copy()
    changed[0, 10] = changed[0, 10] % (VOCAB - 1) + 1
    moved = np.any(logits(model, params, tokens, None) != logits(model, params, changed, None), -1)
    np.testing.assert_array_equal(np.flatnonzero(moved), np.arange(6, 15))  # two layers of 2 tokens


def test_padding_of_a_batch_has_no_effect_on_training():
    """A row's loss is the same alone and beside a longer row, and padding has its own document."""
    model, params, tokens = encoder(kind_of("NoPE")), parameters("NoPE"), tokens_of()
    padded = np.where(np.arange(LENGTH) < 12, tokens[:1], 0)

    def gradient(targets: np.ndarray, count: int) -> Any:
        batch = {
            "targets": jnp.asarray(targets),
            "inputs": jnp.asarray(targets),
            "weights": jnp.asarray(targets != 0, jnp.int8),
            "tokens": jnp.full((1, 1), count, jnp.int32),
        }
        segment_BT, pos_BT = documents(model, batch), jnp.arange(targets.shape[1])[None]
        loss = lambda p: summed_loss(  # noqa: E731
            *(p, model, batch["targets"], batch["weights"], pos_BT, 0.0, segment_BT, None),
            batch["inputs"],
        )[0]
        return jax.jit(jax.grad(loss))(params)

    alone, beside, wrong = gradient(tokens[:1, :12], 12), gradient(padded, 12), gradient(padded, 20)
    for one, other in zip(*map(jax.tree.leaves, (alone, beside)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * (1 + np.max(np.abs(one))))
    assert any(
        np.max(np.abs(a - w)) > 0.01
        for a, w in zip(*map(jax.tree.leaves, (alone, wrong)), strict=True)
    )


def test_exercises_of_a_batch_share_their_bias(monkeypatch):
    """They start at position 0 and have the same length, so one bias suffices, as in text."""
    model, rows, seen = encoder(kind_of("ALiBi")), jnp.ones((3, LENGTH), jnp.int32), []
    kind: Any = type(model.encodings[0])
    bias = kind.bias

    def watched(self: Any, params: Any, q_pos_BT: Any, *others: Any) -> Any:
        seen.append(len(q_pos_BT))
        return bias(self, params, q_pos_BT, *others)

    monkeypatch.setattr(kind, "bias", watched)
    batch = {"targets": rows, "inputs": rows, "weights": rows, "tokens": 12 * rows[:, :1]}
    state = init_state(model, optax.sgd(0.1), jax.random.key(0))
    options: Any = {"model": model, "optimizer": optax.sgd(0.1), "z_loss": 0.0, "microbatches": 1}
    jax.eval_shape(functools.partial(train_step, **options), state, batch, 0)
    assert set(seen[-2:]) == {1}, seen
