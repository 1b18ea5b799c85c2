"""What a sweep may change about a trained model, and how the table labels the change."""

import dataclasses
import functools

import pytest

from fire_lm.errors import UserError
from fire_lm.models import (
    Decoder,
    ModelSize,
    at_longest_length,
    build_decoder,
    build_encoder,
    changes,
    encoding_names,
    variant,
)
from fire_lm.models.comparison import NOT_IN_PREDICTIONS, same_meaning
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fox import FoX
from fire_lm.positions.kerple import KERPLELog, KERPLEPower
from fire_lm.positions.learned import Learned
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import PositionInterpolation, YaRN
from fire_lm.positions.t5 import T5
from fire_lm.positions.temperature import Temperature
from fire_lm.positions.together import Together

SIZE = ModelSize(4, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)


def build(kind=RoPE, log_n=None, size=SIZE, **settings):
    kinds = kind if isinstance(kind, tuple) else functools.partial(kind, **settings)
    share = kind is Learned
    return build_decoder(size, kinds, 32, 64, log_n=log_n, share_position=share)


SCALED = functools.partial(RoPE, scaling=YaRN())
FROZEN = functools.partial(FIRE, normalizer_limit="train_length")


@pytest.mark.parametrize(
    "model",
    [
        build(Together, first=RoPE, second=Temperature),
        build(Together, first=SCALED, second=FoX),
        build_encoder(build_decoder(SIZE, FROZEN, 32, 64)),
    ],
    ids=["temperature", "scaled", "encoder"],
)
def test_parts_of_an_encoding_keep_their_length(model):
    """A change at evaluation is not relative to a longer length if a part was trained with one."""
    assert at_longest_length(model, 128) is model
    moved = at_longest_length(build(Together, first=RoPE, second=FoX), 128)
    assert moved.encodings[0].train_length == 128


def test_parameters_of_other_parts_have_another_meaning():
    first, second = (build(Together, first=k, second=FoX) for k in (KERPLELog, KERPLEPower))
    assert same_meaning(first, first) and not same_meaning(first, second)
    assert encoding_names(first) == ", ".join(["KERPLELog with FoX"])
    decoder = build_decoder(SIZE, functools.partial(Together, first=T5), 32, 64)
    assert not same_meaning(decoder, build_encoder(decoder))
    assert encoding_names(build_encoder(decoder)) == "bidirectional T5 with NoPE"


@pytest.mark.parametrize(
    "trained, asked, name",
    [
        (build(), build(), ""),
        (build(), build(scaling=YaRN(4.0)), "yarn-4x"),
        (build(), build(scaling=PositionInterpolation()), "pi"),
        (build(scaling=YaRN(4.0)), build(scaling=YaRN(4.0)), ""),
        (build(scaling=YaRN(4.0)), build(), "no_scaling"),
        (build(ALiBi), build(ALiBi, interpolate=True), "interpolate"),
        (build(Learned), build(Learned, interpolation=4.0), "interpolation-4"),
        (build(FIRE), build(FIRE, log_n=LogN(clipped=True, on="bias")), "log_n-clipped-bias"),
        (build(), build(log_n=LogN(), scaling=YaRN(4.0)), "log_n+yarn-4x"),
        (build(), build(log_n=LogN(clipped=True)), "log_n-clipped"),
        (build((RoPE, NoPE)), build((SCALED, NoPE)), "yarn"),
        (build((RoPE, RoPE)), build((SCALED, SCALED)), "yarn"),
        (build((RoPE, RoPE)), build((SCALED, RoPE)), "position[0]:yarn"),
        (build((RoPE, RoPE)), build((RoPE, SCALED)), "position[1]:yarn"),
    ],
)
def test_variants_are_named_by_what_they_change(trained, asked, name):
    assert variant(trained, asked) == name


def test_resampling_may_be_evaluated_otherwise():
    def build(evaluation):
        resampling = RandomizedPositions(512, evaluation)
        return build_decoder(SIZE, FIRE, 32, 64, resampling=resampling)

    assert variant(build("plain"), build("even")) == "even"
    with pytest.raises(UserError, match="resampling Resampling -> RandomizedPositions"):
        variant(build_decoder(SIZE, FIRE, 32, 64), build("plain"))


@pytest.mark.parametrize(
    "trained, asked, told",
    [
        (build(), build(base=5e5), "position.base 10000.0 -> 500000.0"),
        (build(), build(FIRE), "position RoPE -> FIRE"),
        (build(), build((RoPE, NoPE)), "position RoPE -> None"),
        (build(FIRE), build(FIRE, init_L=32.0), "position.init_L 16.0 -> 32.0"),
        (build(), build(size=ModelSize(2, 32, 4, 8, 64, 0.3)), "num_layers 4 -> 2"),
    ],
)
def test_another_model_is_refused(trained, asked, told):
    with pytest.raises(UserError, match=told):
        variant(trained, asked)


def test_layers_that_share_parameters_change_alike():
    """Otherwise, one kind of layer would look for parameters that no checkpoint has."""

    def frozen(*limits):
        kinds = tuple(functools.partial(FIRE, normalizer_limit=limit) for limit in limits)
        return build_decoder(SIZE, kinds, 32, 64, share_position=True)

    assert variant(frozen(None, None), frozen(64, 64)) == "normalizer_limit-64"
    for before, after in (((None, None), (64, None)), ((64, None), (None, None))):
        with pytest.raises(UserError, match="change it in all of them alike"):
            variant(frozen(*before), frozen(*after))


def test_changes_are_those_of_settings_that_decide_numbers():
    fast = build_decoder(SIZE, RoPE, 32, 64, remat="full", attention="blockwise")
    assert changes(build(), fast) == {}
    assert changes(build(), build(base=5e5)) == {"position.base": (1e4, 5e5)}


def test_a_field_that_is_added_to_the_decoder_counts_unless_it_is_excepted():
    class Windowed(Decoder):
        window: int | None = None

    def windowed(window: int | None) -> Decoder:
        fields = [field.name for field in dataclasses.fields(Decoder) if field.name != "parent"]
        return Windowed(**{name: getattr(build(), name) for name in fields}, window=window)

    assert changes(windowed(64), windowed(64)) == {}
    assert changes(windowed(64), windowed(128)) == {"window": (64, 128)}
    assert set(NOT_IN_PREDICTIONS) <= {field.name for field in dataclasses.fields(Decoder)}
