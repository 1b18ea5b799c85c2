"""Encodings from outside the package, which decoding may not be able to follow."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import configured, filled

from fire_lm.errors import UserError
from fire_lm.generation import Beam, Greedy, Method, generate, own_encodings
from fire_lm.models import Decoder, Turn
from fire_lm.positions import PositionalEncoding, is_built_in
from fire_lm.positions.fox import FoX
from fire_lm.positions.together import Together
from fire_lm.sharding import mesh_of


@dataclasses.dataclass(frozen=True)
class Gated(PositionalEncoding):
    """Gates that depend on the content of earlier keys, which decoding does not pass to `rotate`.

    It is causal, so that nothing in training or scoring shows that decoding cannot follow.
    """

    translation_invariant = False

    def init(self, rng: jax.Array) -> dict[str, Any]:
        return {"w": jax.random.normal(rng, (self.num_heads, self.head_dim))}

    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        weighted_BSNH = params["w"][None, None] * k_BSNH.astype(jnp.float32)
        gate_BSN = jax.nn.log_sigmoid(jnp.sum(weighted_BSNH, axis=-1))
        decay_BSN1 = jnp.exp(jnp.cumsum(gate_BSN, axis=1) / 8)[..., None]
        return q_BTNH * decay_BSN1.astype(q_BTNH.dtype), k_BSNH


@dataclasses.dataclass(frozen=True)
class Counting(PositionalEncoding):
    """A bias that depends on the number of keys in the array instead of positions."""

    translation_invariant = False

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        share_BTS = k_pos_BS[:, None].astype(jnp.float32) / k_pos_BS.shape[1]
        return jnp.broadcast_to(
            share_BTS[:, None],
            (len(k_pos_BS), self.num_heads, q_pos_BT.shape[1], k_pos_BS.shape[1]),
        )


@dataclasses.dataclass(frozen=True)
class Fading(PositionalEncoding):
    """A valid encoding: a query and its position determine its own scale."""

    translation_invariant = False

    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        fading_BT = 1.0 / (1.0 + q_pos_BT.astype(jnp.float32) / context_length)
        return q_BTNH * fading_BT[..., None, None].astype(q_BTNH.dtype), k_BSNH

    uses_context_length = True  # type: ignore[assignment]


def model_with(*classes: type[PositionalEncoding], dtype: Any = "float32") -> Decoder:
    model = configured("nope", dtype=dtype)
    fields = dataclasses.asdict(model.encodings[0])
    return model.clone(turns=tuple(Turn(one(**fields)) for one in classes))


def generated(model: Decoder, params: Any = None, method: Method = Greedy(), **more: Any) -> Any:  # noqa: B008
    rows = np.array([[0, 5, 7, 9]], np.int32)
    params = filled(model) if params is None else params
    return generate(model, params, rows, [4], new_tokens=2, method=method, **more)


@pytest.mark.ci
@pytest.mark.parametrize(
    "encoding, dtype", [(Gated, "float32"), (Gated, "bfloat16"), (Counting, "float32")]
)
def test_an_encoding_that_decoding_cannot_follow_is_refused(encoding, dtype):
    told = rf"{encoding.__name__} cannot .* differ by up to [\d.]+ \([\d.]+ standard deviations"
    with pytest.raises(UserError, match=told):
        generated(model_with(encoding, dtype=dtype))


@pytest.mark.ci
@pytest.mark.parametrize("more", [{}, {"method": Beam(2)}, {"on_tokens": lambda tokens: None}])
def test_every_method_refuses_it_on_a_mesh(more):
    model = model_with(type(configured("nope").encodings[0]), Gated)
    with pytest.raises(UserError, match="Gated cannot"):
        generated(model, mesh=mesh_of((2, 1, 1), jax.devices()[:2]), **more)


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_encoding_that_decoding_follows_is_checked_once(dtype, monkeypatch):
    model = model_with(Fading, dtype=dtype)
    params = filled(model)
    generated(model, params)
    monkeypatch.setattr(own_encodings, "largest_difference", lambda *_: pytest.fail("again"))
    generated(model, params)


def test_encodings_of_the_package_are_not_checked(monkeypatch):
    monkeypatch.setattr(own_encodings, "largest_difference", lambda *_: pytest.fail("checked"))
    own_encodings.check_own_encodings(configured("fire"), {}, None)
    assert is_built_in(configured("rope").encodings[0])
    assert not is_built_in(model_with(Gated).encodings[0])


def test_an_own_encoding_beside_another_is_checked(monkeypatch):
    monkeypatch.setattr(own_encodings, "largest_difference", lambda *_: (1.0, 1.0))
    model = configured("nope")
    fields = dataclasses.asdict(model.encodings[0])
    together = Together(**fields, first=Counting, second=FoX)
    with pytest.raises(UserError, match="Counting cannot be used to generate text"):
        own_encodings.check_own_encodings(
            model.clone(turns=(Turn(together),)), {"w": jnp.zeros(1)}, None
        )
