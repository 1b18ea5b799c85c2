"""Attention scaled by log n: against its formula, in the complete model, and what refuses it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import filled

from fire_lm.errors import UserError
from fire_lm.models import build_decoder
from fire_lm.models.segments import segment_positions
from fire_lm.models.sizes import ModelSize
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.positions.rope import RoPE

SIZE = ModelSize(1, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)
TWO_LAYERS = dataclasses.replace(SIZE, num_layers=2)
TOKENS = jnp.arange(40)[None] % 32
POS = np.array([0, 1, 15, 16, 63, 64, 65, 4095, 131_072])


def test_factor_is_the_logarithm_to_the_base_of_the_training_length():
    expected = np.log(POS + 1.0) / np.log(64)
    factor = LogN().factor(jnp.asarray(POS)[None] + 1, 64)[0]
    np.testing.assert_allclose(factor, expected, rtol=1e-6)
    assert factor[0] == 0 and factor[4] == pytest.approx(1)
    clipped = LogN(clipped=True).factor(jnp.asarray(POS)[None] + 1, 64)[0]
    np.testing.assert_allclose(clipped, np.maximum(1, expected), rtol=1e-6)


def logits(
    log_n, kind=ALiBi, scale_of_queries=1.0, train_length=16, tokens=TOKENS, pos=None, segment=None
):
    """Return the logits of a decoder of one layer, with each query multiplied by its scale."""
    model = build_decoder(SIZE, kind, 32, train_length, dtype="float32", log_n=log_n)
    pos = jnp.arange(tokens.shape[1])[None] if pos is None else pos
    params = filled(model)
    if np.ndim(scale_of_queries):  # the same function, written as a rotation
        original = kind.rotate

        def rotate(self, params, q, k, q_pos, k_pos, context_length):
            q, k = original(self, params, q, k, q_pos, k_pos, context_length)
            return q * jnp.asarray(scale_of_queries, q.dtype)[None, :, None, None], k

        changed = type("Scaled", (kind,), {"rotate": rotate})
        model = build_decoder(SIZE, changed, 32, train_length, dtype="float32")
    return np.asarray(compiled(model)({"params": params}, tokens, pos, segment))


@functools.cache
def compiled(model):
    return jax.jit(model.apply)


@pytest.mark.ci
@pytest.mark.parametrize("clipped", [False, True])
def test_logits_are_scaled_and_the_bias_is_not(clipped):
    by_hand = np.log(np.arange(40) + 1) / np.log(16)
    by_hand = np.maximum(by_hand, 1) if clipped else by_hand
    expected = logits(None, scale_of_queries=by_hand)
    np.testing.assert_allclose(logits(LogN(clipped)), expected, atol=2e-5)
    assert np.max(np.abs(logits(None) - expected)) > 1e-2
    assert np.max(np.abs(logits(LogN(clipped, on="both")) - expected)) > 1e-2


@pytest.mark.ci
def test_inference_form_leaves_the_training_length_alone():
    for on in ("logits", "bias", "both"):
        scaled = logits(LogN(clipped=True, on=on))
        np.testing.assert_array_equal(scaled[:, :16], logits(None)[:, :16])
        assert np.max(np.abs(scaled - logits(None))[:, 20:]) > 1e-3
    assert np.max(np.abs(logits(LogN()) - logits(None))[:, :16]) > 1e-3


@pytest.mark.ci
@pytest.mark.parametrize("clipped", [False, True])
def test_the_bias_of_a_query_is_scaled_by_its_own_factor(clipped):
    """ALiBi with slopes multiplied by the query's factor is equal; by the key's, it is not."""
    factor = np.log(np.arange(40) + 1) / np.log(16)
    factor = jnp.float32(np.maximum(factor, 1) if clipped else factor)

    class ByQuery(ALiBi):
        def bias(self, params, q_pos_BT, k_pos_BS, context_length):
            plain = super().bias(params, q_pos_BT, k_pos_BS, context_length)
            return plain * factor[q_pos_BT][:, None, :, None]

    class ByKey(ALiBi):
        def bias(self, params, q_pos_BT, k_pos_BS, context_length):
            plain = super().bias(params, q_pos_BT, k_pos_BS, context_length)
            return plain * factor[k_pos_BS][:, None, None, :]

    ours = logits(LogN(clipped, on="bias"))
    np.testing.assert_allclose(ours, logits(None, ByQuery), atol=2e-5)
    assert np.max(np.abs(ours - logits(None, ByKey))) > 1e-3


def test_both_is_a_product_of_the_whole():
    """Scaling q·k and bias equally is a temperature of the softmax; NoPE has only q·k."""
    np.testing.assert_array_equal(logits(LogN(on="both"), NoPEWithBias), logits(LogN(), NoPE))


class NoPEWithBias(NoPE):
    """NoPE with a bias of zeros."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        return jnp.zeros((1, self.num_heads, q_pos_BT.shape[1], k_pos_BS.shape[1]))


@pytest.mark.parametrize("on", ["bias", "both"])
def test_a_bias_that_is_not_there_cannot_be_scaled(on):
    with pytest.raises(UserError, match=f"LogN.on = '{on}', but .* no bias to scale .NoPE.:"):
        build_decoder(SIZE, NoPE, 32, 16, log_n=LogN(on=on))
    with pytest.raises(UserError, match=f"LogN.on = '{on}', but .* no bias to scale .NoPE, RoPE"):
        build_decoder(TWO_LAYERS, (NoPE, RoPE), 32, 16, log_n=LogN(on=on))
    build_decoder(TWO_LAYERS, (NoPE, ALiBi), 32, 16, log_n=LogN(on=on))


def test_no_logarithm_to_the_base_1():
    with pytest.raises(UserError, match="TRAIN_LENGTH is 1: LogN needs 2 or more"):
        build_decoder(SIZE, ALiBi, 32, 1, log_n=LogN())


def test_names_in_tables():
    settings = [LogN(c, on) for c in (False, True) for on in ("logits", "bias", "both")]
    names = [str(log_n) for log_n in settings]
    assert names[0] == "log_n" and names[4] == "log_n-clipped-bias" and len(set(names)) == 6


class SelfBias(NoPE):
    """A bias on each query's own key, which depends on the order of positions and nothing else."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        own_BTS = (q_pos_BT[:, :, None] == k_pos_BS[:, None, :]).astype(jnp.float32)
        return jnp.repeat(own_BTS[:, None], self.num_heads, axis=1)


def test_n_is_the_number_of_keys_whatever_positions_were_drawn():
    """The model sees only the order of positions, so that its logits reveal n.

    n is the number of keys for drawn positions, and in packed documents that of each document.
    """
    read = functools.partial(logits, LogN(on="both"), SelfBias)
    expected = read()
    drawn = RandomizedPositions(2048).training_positions(jax.random.key(3), 1, 40)
    np.testing.assert_allclose(read(pos=drawn), expected, atol=1e-5)
    segment = jnp.int32(jnp.arange(40)[None] >= 24)
    packed = read(pos=segment_positions(drawn, segment), segment=segment)
    np.testing.assert_allclose(packed[:, :24], expected[:, :24], atol=1e-5)
    second = read(tokens=jnp.roll(TOKENS, -24, axis=1))
    np.testing.assert_allclose(packed[:, 24:], second[:, :16], atol=1e-5)
