"""What an encoding must define is checked where a model is built, in one line with its class."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from sample_decoders import SIZE, TRAINED

from fire_lm.errors import UserError
from fire_lm.models import build_decoder
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import distance
from fire_lm.positions.fox import FoX
from fire_lm.positions.together import Together


@dataclasses.dataclass(frozen=True)
class Near(PositionalEncoding):
    """A valid encoding, whose hooks the others replace by wrong ones."""

    def init(self, rng):
        return {"w": jax.random.uniform(rng, (self.num_heads,))}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        return -params["w"][None, :, None, None] * distance_BTS[:, None]


class Misspelt(PositionalEncoding):
    init, biases = Near.init, Near.bias


class MisspeltWithoutParameters(PositionalEncoding):
    def embedding(self, params, x_BTD, pos_BT):
        return x_BTD


class Unused(PositionalEncoding):
    init, common_bias = Near.init, PositionalEncoding.common_bias


class Valid(PositionalEncoding):
    """NoPE with a method of its own that is like no hook."""

    def report(self):
        return "nothing"


def build(kind):
    return build_decoder(SIZE, kind, 32, TRAINED, dtype="float32")


HOOKS = "embed, rotate, bias, logit_scale, log_decay or mix"


@pytest.mark.parametrize(
    "kind, told",
    [
        (Misspelt, f"Misspelt acts through no hook: it must override {HOOKS}. "
         "Did you mean bias instead of biases?"),
        (MisspeltWithoutParameters, "MisspeltWithoutParameters acts through no hook: it must "
         f"override {HOOKS}. Did you mean embed instead of embedding?"),
        (Unused, f"Unused acts through no hook: it must override {HOOKS}"),
        (functools.partial(Together, first=FoX, second=Unused),
         f"Unused acts through no hook: it must override {HOOKS}"),
    ],
)  # fmt: skip
def test_an_encoding_without_an_effect_is_refused(kind, told):
    with pytest.raises(UserError) as caught:
        build(kind)
    assert str(caught.value) == told


@pytest.mark.parametrize("kind", [Near, Valid])
def test_what_is_valid_is_built(kind):
    assert isinstance(build(kind).encodings[0], kind)
