"""A layer of the decoder, with the types of its inputs and of the values that decoding caches.

Shapes: B batch, T positions, S keys, D model, N heads, H head dim, F mlp.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
from jax.sharding import NamedSharding

from fire_lm.attention import Implementation, Layout, TabulatedBias, Terms, Tokens, attend
from fire_lm.attention.cached import CachedKeys, attend_cached
from fire_lm.models.dropout import DROPOUT, drop, drop_values
from fire_lm.models.layer_position import (
    Position,
    Shared,
    init_position,
    positioned,
    prepare_position,
)
from fire_lm.models.layers import gelu, layer_norm, linear
from fire_lm.models.layouts import constrain, heads_sharding
from fire_lm.models.segments import keys_seen
from fire_lm.models.sizes import ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.log_n import LogN


class Kept(NamedTuple):
    """The values of one layer that decoding caches.

    Attributes:
      k_BSNH: The keys, after any rotation by the encoding.
      v_BSNH: The values.
      position: The encoding's prepared parameters, or {} if all layers share one set.
    """

    k_BSNH: jax.Array
    v_BSNH: jax.Array
    position: Params


class Past(NamedTuple):
    """The cached values of one layer, or of several layers along a leading axis.

    Attributes:
      keys: The caches of the prompt and of the continuations; see `attention.cached`.
      position: The prepared parameters, as in `Kept`.
    """

    keys: CachedKeys
    position: Params


class Reading(NamedTuple):
    """The positions and documents of the tokens in one call of the decoder.

    Attributes:
      pos_BT: The positions of the tokens.
      segment_BT: The document of each token, or None if each row is one document.
      seen_BT: The number of keys that each token attends to, or None if there are no cached keys.
      past_pos_BS: The positions of the cached keys, or None.
    """

    pos_BT: jax.Array
    segment_BT: jax.Array | None
    seen_BT: jax.Array | None = None
    past_pos_BS: jax.Array | None = None


class LayerNorm(nn.Module):
    """LayerNorm with learned scale and bias; see `layers.layer_norm`."""

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        shape = (x_BTD.shape[-1],)
        scale_D = self.param("scale", nn.initializers.ones, shape)
        return layer_norm(x_BTD, scale_D, self.param("bias", nn.initializers.zeros, shape))


class Linear(nn.Module):
    """A linear layer over all axes of x `[B, T, ...]` but the first two; see `linear`."""

    out_shape: tuple[int, ...]
    std: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = x.shape[2:] + self.out_shape
        kernel = self.param("kernel", nn.initializers.normal(self.std), shape)
        bias = self.param("bias", nn.initializers.zeros, self.out_shape)
        return linear(x, kernel, bias)


class DecoderLayer(nn.Module):
    """A decoder layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`.

    With `keep`, the layer also returns its keys and values. `context_length` is the length of the
    complete input in tokens; None means that this call receives the complete input. `consecutive`
    states whether positions have no gaps; see `attend`. A dropout rate above 0 requires an rng
    stream named "dropout".
    """

    size: ModelSize
    encoding: PositionalEncoding
    log_n: LogN | None
    attention: Implementation
    consecutive: bool
    activation_sharding: NamedSharding | None
    context_length: int | None = None
    keep: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, reading: Reading, shared: Position | None, past: Past | None
    ) -> tuple[jax.Array, Kept | None]:
        size = self.size
        width = (size.hidden_size,)
        residual_std = size.init_std / math.sqrt(2 * size.num_layers)
        encoding, log_n = self.encoding, self.log_n
        pos_BT, segment_BT = reading.pos_BT, reading.segment_BT
        length = x_BTD.shape[1]
        if shared is not None:
            params, tables = shared
        elif past is not None:
            params, tables = past.position, None
        else:
            own = init_position(self, encoding)
            params, tables = prepare_position(
                *(encoding, own, self.attention, length), self.context_length
            )

        x_BTD = constrain(x_BTD, self.activation_sharding)
        y_BTD = LayerNorm(name="attention_norm")(x_BTD)
        heads = (size.num_heads, size.head_dim)
        to_heads = functools.partial(Linear, heads, size.init_std)
        q_BTNH = to_heads(name="query")(y_BTD)
        k_BTNH = to_heads(name="key")(y_BTD)
        v_BTNH = to_heads(name="value")(y_BTD)
        if self.attention_dropout:
            v_BTNH = drop_values(v_BTNH, self.attention_dropout, self.make_rng(DROPOUT))
        seen_BT = reading.seen_BT
        if log_n is not None and seen_BT is None:
            seen_BT = keys_seen(length, segment_BT)
        q_BTNH, k_BTNH, scales, bias = positioned(
            *(encoding, params, log_n, q_BTNH, k_BTNH, pos_BT, pos_BT, seen_BT),
            context_length=length if self.context_length is None else self.context_length,
        )
        terms = Terms(bias, scales.on_logits_BT, scales.on_bias_BT)
        if past is not None:
            assert reading.past_pos_BS is not None
            pos_B1, of_first = jax.tree.map(lambda x: x[:, :1], (pos_BT, scales))
            y_BTNH = attend_cached(
                *(q_BTNH, k_BTNH, v_BTNH, past.keys),
                *(Tokens(pos_B1), Tokens(reading.past_pos_BS)),
                Terms(bias, *of_first),
            )
        else:
            if tables is not None:
                terms = terms._replace(bias=TabulatedBias(bias, tables))
            tokens = Tokens(pos_BT, segment_BT)
            layout = Layout(
                in_order=True,
                consecutive=self.consecutive,
                sharding=heads_sharding(self.activation_sharding),
                implementation=self.attention,
            )
            y_BTNH = attend(q_BTNH, k_BTNH, v_BTNH, tokens, tokens, terms, layout=layout)
        from_heads = Linear(width, residual_std, name="attention_out")
        x_BTD = x_BTD + self._dropped(from_heads(y_BTNH))

        y_BTD = LayerNorm(name="mlp_norm")(x_BTD)
        mlp_in = Linear((size.mlp_size,), size.init_std, name="mlp_in")
        mlp_out = Linear(width, residual_std, name="mlp_out")
        x_BTD = x_BTD + self._dropped(mlp_out(gelu(mlp_in(y_BTD))))
        kept = Kept(k_BTNH, v_BTNH, params if shared is None else {}) if self.keep else None
        return constrain(x_BTD, self.activation_sharding), kept

    def _dropped(self, x_BTD: jax.Array) -> jax.Array:
        return drop(x_BTD, self.dropout, self.make_rng(DROPOUT)) if self.dropout else x_BTD


class LayerGroup(nn.Module):
    """A group of layers, one for each of the alternating encodings, which are applied in order."""

    turns: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        reading: Reading,
        shared: Shared,
        past: tuple[Past, ...] | None,
    ) -> tuple[jax.Array, tuple[Kept | None, ...]]:
        kept = []
        for index, (layer, params) in enumerate(zip(self.turns, shared, strict=True)):
            own = None if past is None else past[index]
            x_BTD, keys = layer(name=f"block_{index}")(x_BTD, reading, params, own)
            kept.append(keys)
        return x_BTD, tuple(kept)
