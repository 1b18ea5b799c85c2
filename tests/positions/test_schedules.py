"""Encodings that alternate over the layers, and parts that do not fit together."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import filled

from fire_lm.experiment import load_experiment
from fire_lm.models import ModelSize, build_decoder
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.nope import NoPE

SIZE = ModelSize(4, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)
TOKENS, POS = jnp.arange(1, 25)[None], jnp.arange(24)[None]


def build(*kinds, **settings):
    position = kinds[0] if len(kinds) == 1 else kinds
    return build_decoder(SIZE, position, 32, 8, dtype="float32", **settings)


def logits(model, params):
    apply = jax.jit(model.apply)
    return np.asarray(apply({"params": params}, TOKENS, POS))


def in_turns(layers, turns):
    """Regroup parameters stacked by layer as a schedule of `turns` stores them, by block."""
    return {
        f"block_{k}": jax.tree.map(lambda leaf, k=k: leaf[k::turns], layers) for k in range(turns)
    }


@functools.cache
def plain(kind):
    """Return the parameters and logits of a model of one encoding."""
    model = build(kind)
    params = filled(model)
    return params, logits(model, params)


@pytest.mark.ci
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("turns", [2, 4])
def test_one_encoding_in_turns_with_itself_is_that_encoding(turns, remat):
    params, expected = plain(FIRE)
    params = {**params, "layers": in_turns(params["layers"], turns)}
    found = logits(build(*[FIRE] * turns, remat=remat), params)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.ci
def test_every_layer_has_the_encoding_of_its_turn():
    """ALiBi acts in exactly the layers of its turn, as schedules written in full show."""
    params, alibi = plain(ALiBi)
    _, nope = plain(NoPE)
    schedules = {
        kinds: logits(build(*kinds), {**params, "layers": in_turns(params["layers"], len(kinds))})
        for kinds in [
            (NoPE, ALiBi),
            (ALiBi, NoPE),
            (NoPE, ALiBi, NoPE, ALiBi),
            (NoPE, NoPE, NoPE, ALiBi),
        ]
    }
    twice = schedules[NoPE, ALiBi, NoPE, ALiBi]
    np.testing.assert_allclose(schedules[NoPE, ALiBi], twice, atol=1e-5)
    distinct = [alibi, nope, *(v for k, v in schedules.items() if len(k) == 2 or k[1] is NoPE)]
    for index, one in enumerate(distinct):
        assert all(np.max(np.abs(one - other)) > 1e-3 for other in distinct[:index])


def test_layers_of_the_same_encoding_share_its_parameters():
    """Two kinds of FIRE have two sets of parameters, and NoPE has none."""
    narrow = functools.partial(FIRE, width=8)
    model = build(FIRE, NoPE, narrow, FIRE, share_position=True)
    shapes = jax.tree.map(jnp.shape, filled(model))
    assert {name for name in shapes if name.startswith("position")} == {"position", "position_2"}
    assert shapes["position"]["mlp"]["dense_0"]["bias"] == (32,)
    assert shapes["position_2"]["mlp"]["dense_0"]["bias"] == (8,)
    assert not any("position" in block for block in shapes["layers"].values())


def test_log_n_from_the_start_acts_in_every_layer_at_every_length():
    """`swan` clips the log n of its own layers, and `fire_ssmax` learns it."""
    for position in ("swan", "fire_ssmax"):
        files = ["runs/quickstart", f"positions/{position}", "log_n/training"]
        model = load_experiment(
            [f"configs/{file}.gin" for file in files], ["size_tiny.num_layers=4"]
        ).model
        assert all(turn.log_n and not turn.log_n.clipped for turn in model.turns)
        assert not any(turn.log_n.learned for turn in model.turns)
