"""Deliberately broken encodings: each lacks one property that test_positions.py checks.

Some others are valid for what they declare, and one only records how its hooks are called.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.base import distance

_CALLS = itertools.count()


def _per_head(encoding: PositionalEncoding, bias_BTS: jax.Array) -> jax.Array:
    """The same bias for every head."""
    shape = (bias_BTS.shape[0], encoding.num_heads, *bias_BTS.shape[1:])
    return jnp.broadcast_to(bias_BTS[:, None], shape)


class NotFiniteFarOut(PositionalEncoding):
    """The logarithm of the positions left, not finite from twice the training length on."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        left_BT = jnp.log(2 * self.train_length - q_pos_BT.astype(jnp.float32))
        return _per_head(self, left_BT[:, :, None] * jnp.ones(k_pos_BS.shape)[:, None, :])


class DependsOnTheBlock(PositionalEncoding):
    """Distances divided by the position of the first query in the block."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        first_BT = 1 + q_pos_BT[:, :1].astype(jnp.float32)
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        return _per_head(self, distance_BTS / first_BT[:, :, None])


class DependsOnTheLength(PositionalEncoding):
    """Distances divided by the length of the input, without saying so."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        return _per_head(self, -distance_BTS / context_length)


class LearnsTheLength(PositionalEncoding):
    """As `DependsOnTheLength`, but only once a parameter that starts at 0 has moved."""

    def init(self, rng):
        return {"c": jnp.zeros(())}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        slope = 1.0 + params["c"] * jnp.log(jnp.float32(context_length))
        return _per_head(self, -slope * jnp.log1p(distance_BTS))


class InterpolatesEverywhere(PositionalEncoding):
    """Position interpolation that squeezes short inputs too."""

    def interpolated(self):
        return ALiBi(self.num_heads, self.head_dim, self.train_length, self.hidden_size)


class InterpolatesNowhere(PositionalEncoding):
    """Position interpolation that changes nothing."""

    def interpolated(self):
        return self


class SeesTheFuture(PositionalEncoding):
    """Subtracts the mean over the complete sequence from the embeddings."""

    def embed(self, params, x_BTD, pos_BT):
        return x_BTD - jnp.mean(x_BTD, axis=1, keepdims=True)


class RoundsPositions(PositionalEncoding):
    """A bias like ALiBi's, computed from positions rounded to bfloat16."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        rounded_BTS = distance(q_pos_BT.astype(jnp.bfloat16), k_pos_BS.astype(jnp.bfloat16))
        return _per_head(self, -rounded_BTS.astype(jnp.float32))


class RoundsAngles(PositionalEncoding):
    """Scales queries by the cosine of angles rounded to bfloat16."""

    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        angle_BT = q_pos_BT.astype(jnp.bfloat16)
        return q_BTNH * jnp.cos(angle_BT).astype(q_BTNH.dtype)[:, :, None, None], k_BSNH


class PowerOfDistance(PositionalEncoding):
    """-distance^p with p learned: its gradient at distance 0 is 0 * log(0). Parameters: none."""

    def init(self, rng):
        return {"p": jnp.float32(0.5)}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        return _per_head(self, -jnp.exp(params["p"] * jnp.log(distance_BTS)))


class CountsRows(PositionalEncoding):
    """Uses the row index in the array instead of the position."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        rows, keys = jnp.arange(q_pos_BT.shape[1])[None], jnp.arange(k_pos_BS.shape[1])[None]
        near_BT = 1.0 / (1.0 + rows.astype(jnp.float32))
        return _per_head(self, distance(rows, keys).astype(jnp.float32) * near_BT[:, :, None])


class LearnsRows(CountsRows):
    """As `CountsRows`, but only once a parameter that starts at 0 has moved."""

    def init(self, rng):
        return {"w": jnp.zeros(())}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        return params["w"] * super().bias(params, q_pos_BT, k_pos_BS, context_length)


class CountsRowsInItsScale(PositionalEncoding):
    """Scales logits by the row index in the array instead of the position."""

    def logit_scale(self, params, q_pos_BT):
        rows = jnp.arange(q_pos_BT.shape[1])[None]
        return jnp.log(jnp.broadcast_to(rows, q_pos_BT.shape).astype(jnp.float32) + 2.0)


class RoundsItsScale(PositionalEncoding):
    """Scales logits by the logarithm of positions rounded to bfloat16."""

    def logit_scale(self, params, q_pos_BT):
        return jnp.log1p(q_pos_BT.astype(jnp.bfloat16)).astype(jnp.float32)


class CountsCalls(PositionalEncoding):
    """Reads Python state, which a compiled function reads only when it is traced."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        grown_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32) * next(_CALLS)
        return _per_head(self, grown_BTS)


class SameInEveryLayer(PositionalEncoding):
    """Ignores the random key."""

    def init(self, rng):
        return {"slope": jax.random.normal(jax.random.key(0), (self.num_heads,))}


class NamedLikeATable(PositionalEncoding):
    """Its parameter has the name of a table of positions, whose axes are split on a mesh."""

    def init(self, rng):
        return {"embedding": jax.random.normal(rng, (65, self.num_heads))}


class NoConstantInit(PositionalEncoding):
    """Declares that its parameters start as constants, but draws them."""

    constant_init = True

    def init(self, rng):
        return {"slope": jax.random.normal(rng, (self.num_heads,))}


class ConstantInit(PositionalEncoding):
    """A valid encoding. Parameters per layer for 12 heads: 12."""

    constant_init = True

    def init(self, rng):
        return {"slope": jnp.linspace(0.5, 1.5, self.num_heads, dtype=jnp.float32)}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        return -params["slope"][None, :, None, None] * jnp.log1p(distance_BTS)[:, None]


class Misspelt(SameInEveryLayer):
    """Defines `biases` instead of `bias`, so that it acts as NoPE."""

    biases = ConstantInit.bias


class Windowed(PositionalEncoding):
    """A valid encoding whose bias is constant beyond distance 512. Parameters: none."""

    bias_window = 512

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        near_BTS = jnp.minimum(distance(q_pos_BT, k_pos_BS), 512)
        return _per_head(self, -near_BTS.astype(jnp.float32))


class SlidingWindow(PositionalEncoding):
    """A valid encoding that hides keys from distance 512 on. Parameters: none."""

    bias_window = 512

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        return _per_head(self, jnp.where(distance(q_pos_BT, k_pos_BS) < 512, 0.0, -1e9))


class LooksUpDistances(Windowed):
    """A table, which floats cannot index, without the declaration."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        table_P = -jnp.arange(513, dtype=jnp.float32)
        return _per_head(self, table_P[jnp.minimum(distance(q_pos_BT, k_pos_BS), 512)])


class FloorsDistances(Windowed):
    """A table at whole distances, without the declaration."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        near_BTS = jnp.minimum(distance(q_pos_BT, k_pos_BS), 512).astype(jnp.int32)
        return _per_head(self, -near_BTS.astype(jnp.float32))


class FloorsAngles(PositionalEncoding):
    """Scales queries by the cosine of whole positions, without the declaration."""

    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        angle_BT = q_pos_BT.astype(jnp.int32).astype(jnp.float32)
        return q_BTNH * jnp.cos(angle_BT).astype(q_BTNH.dtype)[:, :, None, None], k_BSNH


class RoundsInAWindow(PositionalEncoding):
    """Its bias is constant beyond its window as declared, but rounds distances within it."""

    bias_window = 512

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        near_BTS = jnp.minimum(distance(q_pos_BT, k_pos_BS), 512)
        return _per_head(self, -near_BTS.astype(jnp.bfloat16).astype(jnp.float32))


class GoesOnBeyondItsWindow(PositionalEncoding):
    """Declares a window to be exempt from the check, but its bias keeps changing beyond it."""

    bias_window = 512

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        return _per_head(self, -distance(q_pos_BT, k_pos_BS).astype(jnp.float32))


class SeesPositions(PositionalEncoding):
    """A valid encoding whose bias also depends on the query's position. Parameters per layer: 1."""

    translation_invariant = False
    constant_init = True

    def init(self, rng):
        return {"w": jnp.float32(0.5)}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        share_BTS = distance_BTS / (1.0 + q_pos_BT.astype(jnp.float32))[:, :, None]
        return _per_head(self, -params["w"] * share_BTS)


class ScalesLogits(PositionalEncoding):
    """A valid encoding that multiplies q·k by s log(1 + i) (SSMax). Parameters per layer: 1."""

    translation_invariant = False

    def init(self, rng):
        return {"s": jnp.float32(0.4)}

    def logit_scale(self, params, q_pos_BT):
        return params["s"] * jnp.log1p(q_pos_BT.astype(jnp.float32))


class ClaimsInvariance(SeesPositions):
    """Uses positions, but does not declare it."""

    translation_invariant = True


class DeniesInvariance(Windowed):
    """Depends on distances only, but declares that it uses positions."""

    translation_invariant = False


class StartsAtZero(PositionalEncoding):
    """A valid encoding whose bias is 0 at first. Parameters per layer for 12 heads: 24."""

    translation_invariant = False
    constant_init = True

    def init(self, rng):
        return {"w": jnp.zeros(self.num_heads), "gain": jnp.zeros(self.num_heads)}

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        slope_BNT = params["gain"][None, :, None] * jnp.log1p(q_pos_BT.astype(jnp.float32))[:, None]
        slope_BNT = slope_BNT + params["w"][None, :, None]
        return -slope_BNT[..., None] * jnp.log1p(distance_BTS)[:, None]


class ClaimsInvarianceAtFirst(StartsAtZero):
    """Uses positions once its gain has moved, but does not declare it."""

    translation_invariant = True


class ScalesLogitsAsIfInvariant(ScalesLogits):
    """Scales logits by position, but does not declare that it uses positions."""

    translation_invariant = True


class MixesDtypes(PositionalEncoding):
    """Multiplies integers by float32, which only JAX's strict mode rejects. Parameters: none."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        slopes_N = jnp.linspace(0.5, 1.5, self.num_heads, dtype=jnp.float32)
        return -slopes_N[None, :, None, None] * distance(q_pos_BT, k_pos_BS)[:, None]


class MixesRanks(PositionalEncoding):
    """Relies on axes that JAX adds, which only its strict mode rejects. Parameters: none."""

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        slopes_N = jnp.linspace(0.5, 1.5, self.num_heads, dtype=jnp.float32)
        distance_BTS = distance(q_pos_BT, k_pos_BS).astype(jnp.float32)
        return -slopes_N[:, None, None] * distance_BTS[:, None]


class Recorder(SameInEveryLayer):
    """Records the dtypes, and the context length, that each hook receives."""

    seen: ClassVar[dict[str, list[Any]]] = {}

    def embed(self, params, x_BTD, pos_BT):
        self.seen["embed"] = [pos_BT.dtype]
        return x_BTD

    def rotate(self, params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length):
        positions = [q_pos_BT.dtype, k_pos_BS.dtype]
        self.seen["rotate"] = [params["slope"].dtype, *positions, context_length]
        return q_BTNH, k_BSNH

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        positions = [q_pos_BT.dtype, k_pos_BS.dtype]
        self.seen["bias"] = [params["slope"].dtype, *positions, context_length]
        return None

    def logit_scale(self, params, q_pos_BT):
        self.seen["logit_scale"] = [params["slope"].dtype, q_pos_BT.dtype]
        return None
