"""Temperatures by position: Llama 4's and Ministral's, written out."""

import math

import jax.numpy as jnp
import layer_logits as reference
import numpy as np
import pytest
from sample_decoders import configured

from fire_lm.errors import UserError
from fire_lm.models import variant
from fire_lm.positions.rope import RoPE
from fire_lm.positions.temperature import Temperature
from fire_lm.positions.together import Together

POSITIONS = np.array([0, 1, 8190, 8191, 8192, 16383, 16384, 131_071])


@pytest.mark.parametrize("offset", [1, 0])
def test_factors_are_the_published_ones(offset):
    """At position 8191, Llama 4's factor has grown, and Ministral's has not."""
    temperature = reference.build(Temperature, length=8192, offset=offset)
    found = temperature.logit_scale({}, jnp.asarray(POSITIONS)[None])[0]
    expected = [1 + 0.1 * math.log1p((int(i) + offset) // 8192) for i in POSITIONS]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found[3] > 1) == (offset == 1) and found[4] > 1


def test_the_length_is_that_of_training_unless_it_is_set():
    pos = jnp.arange(9)[None]
    own = reference.build(Temperature, offset=0).logit_scale({}, pos)[0]
    np.testing.assert_array_equal(np.asarray(own) > 1, np.arange(9) >= reference.TRAINED)
    with pytest.raises(UserError, match="Temperature.length is 0: it must be above 0"):
        reference.build(Temperature, length=0)
    with pytest.raises(UserError, match="Temperature.offset is -1: it must be 0 or more"):
        reference.build(Temperature, offset=-1)


def test_with_rope_it_acts_on_rotated_queries():
    both = reference.build(Together, first=RoPE, second=Temperature)
    scale = reference.build(Temperature).logit_scale({}, jnp.arange(reference.LENGTH)[None])[0]
    rotated = reference.logits(reference.build(RoPE), {})
    reference.check(reference.logits(both, {}), np.asarray(rotated * scale[None, :, None]))


def test_irope_has_it_in_the_layers_without_positions():
    local, last = configured("irope").turns[0], configured("irope").turns[3]
    assert (type(local.encoding), local.chunk) == (RoPE, 16)
    assert (type(last.encoding), last.chunk, last.encoding.offset) == (Temperature, None, 1)
    assert configured("rope_temperature").encodings[0].second.offset == 0


def test_scalings_can_be_applied_to_full_layers_only():
    plain = configured("gemma")
    full = configured("gemma", "global/RoPE.scaling = @YaRN()")
    assert variant(plain, full) == "position[5]:yarn"
    bases = [turn.encoding.base for turn in plain.turns]
    assert bases == [10_000.0] * 5 + [1_000_000.0] and plain.turns[5].window is None
