"""Properties that every encoding of configs/positions/ must have; new gin files are included.

Each property is a function of `fire_lm.encoding_properties`. It is checked on all configured
encodings (one of each kind in the quick tier; each class, and the variants with code of their own,
in the ci tier; the others in --all), and once on a broken one (broken_encodings.py) to show that it
can fail.

`scripts/test --encoding NAME` runs this file for one encoding, and nothing else.

The equations themselves are tested in test_fire.py, test_alibi.py and test_rope.py.
"""

import dataclasses
import functools
import itertools
from typing import Any

import broken_encodings as broken
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import CLASSES, CONFIGS, IN_CI, NAMES, ONE_OF_EACH_KIND, layers, tier

from fire_lm import encoding_properties
from fire_lm.encoding_properties import Check, explain, in_models
from fire_lm.encoding_properties import of_hooks as properties
from fire_lm.encoding_properties.of_hooks import LENGTH, SIZE, init, largest_error
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.models import Decoder, Turn
from fire_lm.positions import PositionalEncoding

TRACEBACK = "-- --tb=long"


@functools.cache
def configured(name: str) -> Decoder:
    """Return the decoder that configs/positions/NAME.gin configures, at a small size."""
    files = [str(CONFIGS / "runs/quickstart.gin"), str(CONFIGS / f"positions/{name}.gin")]
    config = load_experiment(files)
    assert config.label == name, "the sweep's tables name runs by this macro"
    size = dataclasses.replace(SIZE, num_layers=layers(name))
    changed: dict[str, Any] = {"size": size, "vocab_size": 32, "train_length": LENGTH}
    return config.model_with(**changed)


PROPERTIES: dict[Check, list[type[PositionalEncoding]]] = {
    properties.has_a_hook_for_its_parameters: [broken.Misspelt],
    properties.has_finite_values_far_out: [broken.NotFiniteFarOut],
    in_models.has_the_same_values_in_blocks: [broken.DependsOnTheBlock],
    in_models.has_no_leaks: [broken.SeesTheFuture],
    in_models.has_no_leaks_in_decoding: [broken.SeesTheFuture],
    properties.has_all_bits_of_positions: [
        *(broken.RoundsPositions, broken.RoundsAngles),
        *(broken.RoundsInAWindow, broken.GoesOnBeyondItsWindow, broken.RoundsItsScale),
    ],
    properties.has_values_between_integer_positions: [
        *(broken.LooksUpDistances, broken.FloorsDistances, broken.FloorsAngles),
    ],
    properties.has_finite_gradients_at_distance_0: [broken.PowerOfDistance],
    properties.has_equal_decode_rows: [
        *(broken.DependsOnTheBlock, broken.CountsRowsInItsScale, broken.LearnsRows),
    ],
    properties.has_equal_values_in_packed_documents: [
        *(broken.CountsRows, broken.LearnsRows),
        broken.CountsRowsInItsScale,
    ],
    in_models.has_the_common_form: [broken.DependsOnTheBlock, broken.NotFiniteFarOut],
    properties.has_no_hidden_state: [broken.CountsCalls],
    properties.has_the_documented_size: [broken.PowerOfDistance, broken.CountsCalls],
    in_models.has_parameters_of_its_own_in_every_layer: [
        broken.SameInEveryLayer,
        broken.NoConstantInit,
    ],
    properties.has_a_place_on_every_mesh: [broken.NamedLikeATable],
    properties.has_interpolation_beyond_training_alone: [
        broken.InterpolatesEverywhere,
        broken.InterpolatesNowhere,
    ],
    in_models.has_explicit_dtypes_and_axes: [broken.MixesDtypes, broken.MixesRanks],
    properties.has_the_declared_use_of_the_context_length: [
        broken.DependsOnTheLength,
        broken.LearnsTheLength,
    ],
    properties.has_the_declared_invariance: [
        broken.ClaimsInvariance,
        broken.ClaimsInvarianceAtFirst,
        broken.DeniesInvariance,
        broken.ScalesLogitsAsIfInvariant,
    ],
}


def test_every_property_can_fail():
    assert set(PROPERTIES) == set(encoding_properties.PROPERTIES)
    assert all(PROPERTIES.values())


@functools.cache
def lacks(check: Check, encoding: PositionalEncoding) -> Exception | None:
    """Return how a check fails, or None; cached, as two gin files can give equal encodings."""
    return encoding_properties.lacks(check, encoding)


def demand(name: str, check: Check, encoding: PositionalEncoding, traceback: bool) -> None:
    if error := lacks(check, encoding):
        if traceback:
            raise error
        pytest.fail(explain(name, check, encoding, error, TRACEBACK), pytrace=False)


# Each compiles several programs, and depends on the class; of FIRE's variants, GeLU alone has no
# common form, and FIRE-T alone has one without kinks.
SLOWEST = (
    in_models.has_the_same_values_in_blocks,
    in_models.has_the_common_form,
    in_models.has_no_leaks_in_decoding,
)


# Schedules and options of layers whose encodings are those of other files.
REPEATED = {"fire_and_rope", "nope_every_4th", "t5_per_layer", "fire_sink", "fire_ssmax", "swan"}


# These compile a decoder or attention: a bias and a rotation in the quick tier.
OF_MODELS = (
    *(in_models.has_the_same_values_in_blocks, in_models.has_no_leaks),
    *(in_models.has_the_common_form, in_models.has_parameters_of_its_own_in_every_layer),
)


def case(check: Check, name: str) -> Any:
    ci = (*CLASSES, "fire_gelu", "fire_t") if check in SLOWEST else {*IN_CI} - REPEATED
    quick: tuple[str, ...] = ("fire", "rope") if check in OF_MODELS else ONE_OF_EACH_KIND
    if check is in_models.has_no_leaks_in_decoding:
        quick = ()
    return pytest.param(check, name, marks=tier(name, quick, ci), id=f"{check.__name__}-{name}")


@pytest.mark.parametrize(
    "check, name", [case(*pair) for pair in itertools.product(PROPERTIES, NAMES)]
)
def test_encoding(check, name, request):
    for encoding in configured(name).encodings:
        demand(name, check, encoding, request.config.option.tbstyle == "long")


@pytest.mark.parametrize("wrong, error", [(1.0, 0.0), (1.5, 0.5), (np.nan, np.nan)])
def test_largest_error_is_that_of_the_worst_leaf(wrong, error):
    expected = {"first": np.ones(2), "second": np.ones(2), "third": np.ones(2)}
    found = expected | {"second": np.array([1.0, wrong])}
    np.testing.assert_equal(largest_error(found, expected), error)


BROKEN = [
    pytest.param(
        *(check, kind),
        marks=[pytest.mark.ci] * (check is in_models.has_no_leaks_in_decoding),
        id=f"{check.__name__}-{kind.__name__}",
    )
    for check, kinds in PROPERTIES.items()
    for kind in kinds
]


@pytest.mark.parametrize("check, kind", BROKEN)
def test_property_is_missed_in_a_broken_encoding(check, kind):
    error = lacks(check, example(kind))
    others = {
        "has_a_hook_for_its_parameters": UserError,
        "has_a_place_on_every_mesh": UserError,
        "has_values_between_integer_positions": (AssertionError, TypeError),
        "has_explicit_dtypes_and_axes": (AssertionError, TypeError, ValueError),
    }
    assert isinstance(error, others.get(check.__name__, AssertionError))


def example(kind: type[PositionalEncoding]) -> PositionalEncoding:
    return kind(SIZE.num_heads, SIZE.head_dim, LENGTH, SIZE.hidden_size)


MIXED = pytest.mark.parametrize("kind", [broken.MixesDtypes, broken.MixesRanks])


@MIXED
def test_what_jax_converts_silently_is_told_with_its_place_and_the_way_out(kind):
    check = in_models.has_explicit_dtypes_and_axes
    error = lacks(check, example(kind))
    assert error is not None
    told = explain("mine", check, example(kind), error, TRACEBACK)
    assert "mine lacks the property has_explicit_dtypes_and_axes" in told
    assert "broken_encodings.py:" in told and ".astype(jnp.float32)" in told
    assert "[None, :, None, None]" in told


def test_tables_that_differ_from_the_bias_are_no_matter_of_dtypes():
    """The advice on dtypes would be false."""
    encoding = example(broken.DependsOnTheBlock)
    assert lacks(in_models.has_the_common_form, encoding)
    assert lacks(in_models.has_explicit_dtypes_and_axes, encoding) is None


@MIXED
@pytest.mark.ci
def test_what_jax_converts_silently_costs_one_property(kind):
    others = [check for check in PROPERTIES if "explicit" not in check.__name__]
    assert [check for check in others if lacks(check, example(kind))] == []


# What each declares (a window, constants at the start, no invariance) is not held against it.
DECLARED = [
    *(broken.Windowed, broken.SlidingWindow, broken.ConstantInit),
    *(broken.SeesPositions, broken.ScalesLogits, broken.StartsAtZero),
]


@pytest.mark.ci
@pytest.mark.parametrize("kind", DECLARED)
def test_encodings_that_declare_have_all_properties(kind):
    assert [check for check in PROPERTIES if lacks(check, example(kind))] == []


def test_fire_s_has_one_set_of_parameters():
    model = configured("fire_s")
    assert model.share_position and not configured("fire").share_position
    entries, expected = in_models.position_entries(model), init(model.encodings[0])
    assert jax.tree.map(jnp.shape, entries) == {"top": jax.tree.map(jnp.shape, expected)}


def test_bfloat16_decoder_gives_encodings_integers_and_float32():
    """Every hook is called with integer positions, and parameters are not cast."""
    encoding = broken.Recorder(12, 8, LENGTH, 96)
    model = Decoder(SIZE, (Turn(encoding),), vocab_size=32, dtype=jnp.bfloat16)
    tokens = jnp.zeros((1, 4), jnp.int32)
    broken.Recorder.seen.clear()
    jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
    assert broken.Recorder.seen == {
        "embed": ["int32"],
        "rotate": ["float32", "int32", "int32", 4],
        "bias": ["float32", "int32", "int32", 4],
        "logit_scale": ["float32", "int32"],
    }
