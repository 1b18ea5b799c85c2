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


def bias_of(change):
    """Return an encoding whose bias is that of `Near`, changed."""

    class Wrong(Near):
        def bias(self, params, q_pos_BT, k_pos_BS, context_length):
            return change(super().bias(params, q_pos_BT, k_pos_BS, context_length))

    return Wrong


class OneScale(Near):
    def logit_scale(self, params, q_pos_BT):
        return jnp.ones(q_pos_BT.shape[1])


class WrongGates(Near):
    def log_decay(self, params, y_BTD):
        return -jnp.ones((y_BTD.shape[0], self.num_heads, y_BTD.shape[1]))


class OneRotated(Near):
    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        return q_BTNH


class DoublesHeads(Near):
    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        return q_BTNH, jnp.concatenate([k_BSNH, k_BSNH], axis=2)


class Promotes(Near):
    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        return q_BTNH.astype(jnp.float16), k_BSNH


@pytest.mark.parametrize(
    "kind, told",
    [
        (bias_of(lambda bias: bias[:, 0]),
         "Wrong.bias returns float32[6, 5, 5]: it must return float32[6 or 1, 6, 5, 5]"),
        (bias_of(lambda bias: bias[:, :1]),
         "Wrong.bias returns float32[6, 1, 5, 5]: it must return float32[6 or 1, 6, 5, 5]"),
        (bias_of(lambda bias: bias.astype(jnp.bfloat16)),
         "Wrong.bias returns bfloat16[6, 6, 5, 5]: it must return float32[6 or 1, 6, 5, 5]"),
        (bias_of(lambda bias: 0.5), "Wrong.bias returns float: it must return float32[6 or 1, 6, "),
        (OneScale, "OneScale.logit_scale returns float32[5]: it must return float32[6 or 1, 5]"),
        (WrongGates,
         "WrongGates.log_decay returns float32[6, 6, 5]: it must return float32[6 or 1, 5, 6]"),
        (OneRotated, "OneRotated.rotate returns float32[6, 5, 6, 8]: it must return a pair, "
         "queries and keys"),
        (DoublesHeads, "DoublesHeads.rotate returns keys of float32[6, 5, 12, 8]: they must be "
         "float32[6, 5, 6, H]"),
        (Promotes, "Promotes.rotate returns queries of float16[6, 5, 6, 8]: they must be "
         "float32[6, 5, 6, H]"),
        (bias_of(lambda bias: bias[:1]), None),
        (Near, None),
    ],
)  # fmt: skip
def test_a_hook_that_returns_another_shape_or_dtype_is_named(kind, told):
    """The batch has as many sequences as there are heads, each with its own positions."""
    model = build(kind)
    pos_BT = jnp.broadcast_to(jnp.arange(5), (SIZE.num_heads, 5))
    trace = functools.partial(jax.eval_shape, model.init, jax.random.key(0), pos_BT, pos_BT)
    if told is None:
        assert trace()
        return
    with pytest.raises(UserError) as caught:
        trace()
    assert str(caught.value).startswith(told)


def starting_from(params):
    class Wrong(Near):
        def init(self, rng):
            return params

    return Wrong


W = jnp.zeros((6,))


@pytest.mark.parametrize(
    "params, told",
    [
        (W, "returns float32[6]"),
        (None, "returns NoneType"),
        ({"w": W.astype(jnp.int32)}, "returns w as int32[6]"),
        ({"w": W, "mlp": {"kernel": W.astype(jnp.bfloat16)}}, "returns mlp/kernel as bfloat16[6]"),
    ],
)
def test_parameters_of_another_type_are_refused(params, told):
    with pytest.raises(UserError) as caught:
        build(starting_from(params))
    assert str(caught.value) == f"Wrong.init {told}: it must return a dict of float32 arrays"
    with pytest.raises(UserError, match=r"Wrong\.init"):
        build(functools.partial(Together, first=FoX, second=starting_from(params)))
