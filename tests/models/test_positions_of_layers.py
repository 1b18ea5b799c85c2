"""Which layer has which encoding with which parameters, however the decoder stores them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import filled

from fire_lm.models import (
    InfiniAttention,
    Mixer,
    ModelSize,
    Turn,
    build_decoder,
    learned_scalars_by_layer,
    position_layers,
)
from fire_lm.models.positions_of_layers import position_diagnostics, position_stacks, runs_in_kernel
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.t5 import T5

SIZE = ModelSize(4, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)
LENGTH = 32  # the training length; init_L is 8
FIRE_G = functools.partial(FIRE, width=8, init_gamma=0.5)


def build(*kinds, **settings):
    position = kinds[0] if len(kinds) == 1 else kinds
    return build_decoder(SIZE, position, 32, LENGTH, dtype="float32", **settings)


def layers_of(params, turns=1):
    """Return the parameters of each layer's encoding, read from the tree without the library."""
    blocks = [params["layers"]] if turns == 1 else [params["layers"][f"block_{k}"] for k in (0, 1)]
    return {
        layer: jax.tree.map(lambda leaf: leaf[layer // turns], blocks[layer % turns]["position"])  # noqa: B023
        for layer in range(4)
        if "position" in blocks[layer % turns]
    }


def by_hand(params):
    """Return FIRE's learned scalars of some layers, computed in numpy."""
    found = {}
    for layer, own in params.items():
        found[f"c/layer_{layer}"] = np.abs(own["c"])
        found[f"L/layer_{layer}"] = np.abs(own["L_multiplier"]) * 8
        if "gamma" in own:
            found[f"gamma/layer_{layer}"] = np.asarray(own["gamma"])
    return found


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.shape == ()
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)


def test_numbers_of_each_layer():
    model = build(FIRE_G)
    params = filled(model)
    expected = by_hand(layers_of(params))
    assert len(expected) == 12 and len({float(value) for value in expected.values()}) == 12
    same(learned_scalars_by_layer(model, params), expected)
    same(jax.jit(functools.partial(learned_scalars_by_layer, model))(params), expected)


def test_numbers_of_layers_that_share_are_those_of_the_first():
    model = build(NoPE, FIRE, FIRE_G, FIRE, share_position=True)
    params = filled(model)
    same(
        learned_scalars_by_layer(model, params),
        by_hand({1: params["position_1"], 2: params["position_2"]}),
    )
    alone = build(FIRE, share_position=True)
    params = filled(alone)
    same(learned_scalars_by_layer(alone, params), by_hand({0: params["position"]}))


def test_numbers_of_encodings_that_take_turns_have_their_layers():
    for kinds, layers in (((RoPE, FIRE), {1, 3}), ((FIRE, RoPE), {0, 2})):
        model = build(*kinds)
        params = filled(model)
        own = layers_of(params, turns=2)
        assert set(own) == layers
        same(learned_scalars_by_layer(model, params), by_hand(own))


@pytest.mark.parametrize("kind", [ALiBi, NoPE, T5])
def test_no_numbers_without_learned_scalars(kind):
    model = build(kind)
    assert learned_scalars_by_layer(model, filled(model)) == {}


def test_layers_in_their_order():
    """Layers with parameters have one entry each; encodings without any have one entry together."""
    model = build(FIRE_G, T5)
    params = filled(model)
    found = position_layers(model, params)
    assert [(layer, type(encoding)) for layer, encoding, _ in found] == [
        *((0, FIRE), (1, T5), (2, FIRE), (3, T5))
    ]
    own = layers_of(params, turns=2)
    for layer, _, its in found:
        jax.tree.map(np.testing.assert_array_equal, its, own[layer])
    without = build(RoPE, RoPE, RoPE, NoPE)
    assert [
        (stack.layers, stack.params) for stack in position_stacks(without, filled(without))
    ] == [*(((0,), {}), ((3,), {}))]


def test_metrics_are_the_largest_of_all_layers():
    """The layers differ in their numbers of kinks, and the first layer does not have the most."""
    model = build(functools.partial(FIRE, width=8, hidden_layers=1))
    params = filled(model)
    measure = jax.jit(model.encodings[0].diagnostics)
    kinks = [float(measure(own)["fire_kinks"]) for own in layers_of(params).values()]
    assert max(kinks) > max(kinks[0], min(kinks))
    metrics = jax.jit(functools.partial(position_diagnostics, model))(params)
    assert float(metrics["fire_kinks"]) == max(kinks)


@pytest.mark.parametrize(
    "options, runs",
    [
        ({}, True),
        ({"window": 100}, True),
        ({"chunk": 300}, True),
        ({"chunk": 100}, False),
        ({"causal": False}, False),
        ({"mixer": InfiniAttention(100)}, True),
        ({"mixer": Mixer()}, False),
    ],
)
def test_the_kernel_is_blamed_only_if_it_runs(options, runs):
    size = ModelSize(2, hidden_size=128, num_heads=2, head_dim=64, mlp_size=64, init_std=0.3)
    model = build_decoder(size, FIRE, 32, LENGTH, dtype="float32", attention="tpu")
    assert runs_in_kernel(model, Turn(model.encodings[0], **options), 300) == runs
    assert not runs_in_kernel(model.clone(dtype=jnp.float16), model.turns[0], 300)
    assert not runs_in_kernel(model, Turn(NoPE(2, 64, LENGTH, 128)), 300)
