"""Two encodings in one layer: each term is that of its part, in attention and in comparisons."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import layer_logits as reference
import numpy as np
import pytest
from sample_decoders import configured

from fire_lm.encoding_properties import in_models
from fire_lm.errors import UserError
from fire_lm.models import ModelSize, build_decoder, changes, variant
from fire_lm.models.layer_table import described_encoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.dape import DAPE
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fox import FoX
from fire_lm.positions.kerple import KERPLELog
from fire_lm.positions.pope import PoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.sinusoidal import Sinusoidal
from fire_lm.positions.t5 import T5
from fire_lm.positions.temperature import Temperature
from fire_lm.positions.together import Together
from fire_lm.positions.xpos import XPos


def both(first, second):
    return reference.build(Together, first=first, second=second)


def test_parts_of_parts_may_act_on_the_embedding_without_parameters():
    inner = functools.partial(Together, first=Sinusoidal, second=FIRE)
    size = ModelSize(1, 16, 2, 8, 32, 0.3)
    for first, second in ((inner, FoX), (FoX, inner)):
        build_decoder(size, functools.partial(Together, first=first, second=second), 32, 16)


@pytest.mark.ci
@pytest.mark.parametrize("first", [FIRE, KERPLELog, T5])
def test_biases_and_gates_are_added(first):
    together = both(first, FoX)
    params = reference.drawn(together)
    terms = [
        reference.logits(part, params[name]) - reference.products()
        for name, part in together.parts.items()
    ]
    reference.check(reference.logits(together, params), sum(terms) + reference.products())


def test_a_rotation_a_bias_and_a_temperature():
    """Two encodings may be a part of a third one."""
    inner = functools.partial(Together, first=ALiBi, second=Temperature)
    together = both(RoPE, inner)
    scale = reference.build(Temperature).logit_scale({}, jnp.arange(reference.LENGTH)[None])
    assert scale[0, -1] > 1
    rotated = np.asarray(reference.logits(reference.build(RoPE), {}))
    bias = np.asarray(reference.logits(reference.build(ALiBi), {})) - reference.products()
    expected = rotated * np.asarray(scale)[0][None, :, None] + bias
    reference.check(reference.logits(together, {}), expected)


def test_logit_scales_are_multiplied():
    steep = functools.partial(Temperature, strength=0.5)
    pos = jnp.arange(reference.LENGTH)[None]
    scales = [reference.build(kind).logit_scale({}, pos) for kind in (Temperature, steep)]
    found = both(Temperature, steep).logit_scale({}, pos)
    np.testing.assert_allclose(found, scales[0] * scales[1], rtol=1e-6)


def test_the_tables_of_the_kernel_are_those_of_the_part_with_a_bias():
    together = both(FIRE, FoX)
    params = reference.drawn(together)
    found, own = (
        one.common_bias(one.prepare(own), 9, 9)
        for one, own in ((together, params), (together.first, params["first"]))
    )
    jax.tree.map(np.testing.assert_array_equal, found, own)
    for pair, has_tables in ((both(FIRE, KERPLELog), False), (both(ALiBi, KERPLELog), True)):
        tables = pair.common_bias(pair.init(jax.random.key(0)), 9, 9)
        assert (tables is not None) == has_tables == in_models.has_tables(pair)
    gelu = functools.partial(FIRE, activation="gelu")
    assert not in_models.has_tables(both(gelu, FoX)) and in_models.has_tables(together)


def test_declarations_follow_from_the_parts():
    assert both(RoPE, FoX).translation_invariant and not both(FIRE, FoX).translation_invariant
    assert both(T5, FoX).integer_positions and not both(FIRE, FoX).integer_positions
    assert both(T5, FoX).bias_window == reference.build(T5).bias_window
    assert both(T5, ALiBi).bias_window is None
    assert both(ALiBi, PoPE).constant_init and not both(ALiBi, FoX).constant_init
    assert both(XPos, FoX).uses_context_length and not both(RoPE, FoX).uses_context_length
    assert both(RoPE, FoX).uses_positions
    assert described_encoding(both(RoPE, functools.partial(FoX, init_bias=5.0))) == (
        "Together (first RoPE, second FoX (init_bias 5.0))"
    )


def test_interpolation_acts_on_the_parts_that_have_it():
    changed = both(RoPE, FoX).interpolated()
    assert changed.first == reference.build(RoPE).interpolated()
    assert changed.second == reference.build(FoX)
    assert both(FIRE, FoX).interpolated() is None


def test_parts_follow_another_training_length():
    longer = dataclasses.replace(both(ALiBi, FoX), train_length=99)
    assert [part.train_length for part in longer.parts.values()] == [99, 99]
    assert both(ALiBi, FoX) == both(reference.build(ALiBi), FoX)


def test_a_sweep_may_change_what_a_part_allows():
    plain, yarn = configured("fox_rope"), configured("fox_rope", "RoPE.scaling = @YaRN()")
    assert variant(plain, yarn) == "yarn"
    assert list(changes(plain, yarn)) == ["position.first.scaling"]
    other = configured("fox_rope", "FoX.init_bias = 1.0")
    with pytest.raises(UserError, match="position.second.init_bias 5.0 -> 1.0"):
        variant(plain, other)


@pytest.mark.parametrize(
    "first, second, words",
    [
        (RoPE, PoPE, "RoPE and PoPE both rotate queries and keys"),
        (DAPE, DAPE, "DAPE and DAPE both mix the heads' logits"),
    ],
)
def test_what_cannot_be_together(first, second, words):
    with pytest.raises(UserError, match=words):
        both(first, second)
