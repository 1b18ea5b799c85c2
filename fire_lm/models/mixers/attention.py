"""Softmax attention as a mixer: projections to heads, the encoding's terms, and a cache of keys.

Shapes: B batch, T tokens, K continuations, S keys, N heads, H head dim, D model, L layers, P
prompt, C context.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from fire_lm.attention import Layout, Mask, TabulatedBias, Terms, Tokens, attend
from fire_lm.attention.cached import NewKeys, attend_cached, cached_keys, written
from fire_lm.attention.decay import cumulated
from fire_lm.models.dropout import DROPOUT, drop_values
from fire_lm.models.layer_position import Position, positioned
from fire_lm.models.layouts import heads_sharding
from fire_lm.models.mixers.base import LayerSpec, Mixer, Prompts, Reading, State
from fire_lm.models.modules import Linear
from fire_lm.models.segments import keys_under
from fire_lm.positions.base import Params


class Heads(NamedTuple):
    """What attention in a layer computes from the tokens of a call.

    Attributes:
      q_BTNH: The queries, after any rotation by the encoding.
      k_BTNH: The keys, likewise.
      tokens: The positions, documents and places of the tokens.
      terms: The terms of the logits.
    """

    q_BTNH: jax.Array
    k_BTNH: jax.Array
    tokens: Tokens
    terms: Terms


@dataclasses.dataclass(frozen=True)
class Attention(Mixer):
    """Multi-head softmax attention with the layer's encoding."""

    options = ("window", "chunk", "log_n", "encoding", "attention_dropout")

    def __call__(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BTD: jax.Array,
        reading: Reading,
        position: Position,
    ) -> tuple[jax.Array, Any]:
        projected = self.projected(spec, y_BTD)
        y_BTNH, kept = self.attended(layer, spec, y_BTD, projected, reading, position)
        return self.output(spec, y_BTNH), kept

    def attended(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BTD: jax.Array,
        projected: tuple[jax.Array, jax.Array, jax.Array],
        reading: Reading,
        position: Position,
    ) -> tuple[jax.Array, Any]:
        """Return what `__call__` does, before the output projection, `[B, T, N, H]`."""
        q_BTNH, k_BTNH, v_BTNH = projected
        if spec.attention_dropout:
            v_BTNH = drop_values(v_BTNH, spec.attention_dropout, layer.make_rng(DROPOUT))
        log_decay_BTN = spec.encoding.log_decay(position.params, y_BTD)
        q_BTNH, k_BTNH, tokens, terms = heads(
            *(spec, position.params, q_BTNH, k_BTNH, reading, log_decay_BTN)
        )
        if position.tables is not None and terms.bias is not None:
            terms = terms._replace(bias=TabulatedBias(terms.bias, position.tables))
        layout = Layout(
            in_order=True,
            consecutive=spec.consecutive,
            sharding=heads_sharding(spec.activation_sharding),
            implementation=spec.attention,
        )
        y_BTNH = attend(q_BTNH, k_BTNH, v_BTNH, tokens, tokens, terms, spec.mask, layout)
        return y_BTNH, (k_BTNH, v_BTNH, log_decay_BTN)

    def step(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BKD: jax.Array,
        reading: Reading,
        position: Position,
        state: State,
    ) -> tuple[jax.Array, Any]:
        projected = self.projected(spec, y_BKD)
        y_BKNH, new = self.attended_step(spec, y_BKD, projected, reading, position, state)
        return self.output(spec, y_BKNH), new

    def attended_step(
        self,
        spec: LayerSpec,
        y_BKD: jax.Array,
        projected: tuple[jax.Array, jax.Array, jax.Array],
        reading: Reading,
        position: Position,
        state: State,
    ) -> tuple[jax.Array, NewKeys]:
        """Return what `step` does, before the output projection, `[B, K, N, H]`."""
        q_BKNH, k_BKNH, v_BKNH = projected
        q_BKNH, k_BKNH, tokens, terms = heads(spec, position.params, q_BKNH, k_BKNH, reading)
        # All continuations of a prompt are at the same position.
        token, logit_scale_B1, bias_scale_B1 = jax.tree.map(
            lambda x: x[:, :1], (tokens, terms.logit_scale_BT, terms.bias_scale_BT)
        )
        terms = terms._replace(logit_scale_BT=logit_scale_B1, bias_scale_BT=bias_scale_B1)
        new = NewKeys(k_BKNH, v_BKNH)
        if (log_decay_BKN := spec.encoding.log_decay(position.params, y_BKD)) is not None:
            new = new._replace(decay_BKN=state.own.last_BKN + log_decay_BKN)
        y_BKNH = attend_cached(
            *(q_BKNH, new, state.prompt, state.own, token, state.common, terms, spec.mask)
        )
        return y_BKNH, new

    def keys_per_token(self, mask: Mask, length: int, head_dim: int) -> float:
        return length if mask.reach is None else min(length, mask.reach)

    def start(self, kept: Any, prompts: Prompts, mask: Mask) -> State:
        k_LBPNH, v_LBPNH, log_decay_LBPN = kept
        lengths_B, pos_C, new_tokens, continuations = prompts
        caches = cached_keys(
            *(k_LBPNH, v_LBPNH, log_decay_LBPN, lengths_B, pos_C, new_tokens, continuations, mask)
        )
        return State(*caches)

    def append(self, state: State, new: Any, reading: Reading) -> State:
        assert reading.generated is not None
        token = Tokens(reading.pos_BT[:, :1], place=reading.place(1)[:, :1])
        own, tokens = written(state.own, state.common, new, token, reading.generated)
        return state._replace(own=own, common=tokens)

    def projected(
        self, spec: LayerSpec, y_BTD: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the queries, keys and values `[B, T, N, H]` before any rotation."""
        shape = (spec.size.num_heads, spec.size.head_dim)
        to_heads = functools.partial(Linear, shape, spec.size.init_std)
        query, key, value = (to_heads(name=name)(y_BTD) for name in ("query", "key", "value"))
        return query, key, value

    def output(self, spec: LayerSpec, y_BTNH: jax.Array) -> jax.Array:
        """Return the layer's addition to the residual stream, `[B, T, D]`."""
        return Linear((spec.size.hidden_size,), spec.residual_std, name="attention_out")(y_BTNH)


def heads(
    spec: LayerSpec,
    params: Params,
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    reading: Reading,
    log_decay_BTN: jax.Array | None = None,
) -> Heads:
    """Return the queries and keys as the encoding transforms them, and the terms of the logits.

    Args:
      spec: Static facts about the layer.
      params: The prepared parameters of the encoding.
      q_BTNH, k_BTNH: The projected queries and keys.
      reading: The positions and documents of the tokens.
      log_decay_BTN: The log forget gates of the tokens of complete texts, or None.
    """
    length = q_BTNH.shape[1]
    seen_BT = None
    if spec.log_n is not None:
        seen_BT = keys_under(spec.mask, reading.place(length), reading.segment_BT)
    pos_BT = reading.pos_BT
    q_BTNH, k_BTNH, scales, bias = positioned(
        *(spec.encoding, params, spec.log_n, q_BTNH, k_BTNH, pos_BT, pos_BT, seen_BT),
        context_length=length if spec.context_length is None else spec.context_length,
    )
    tokens = Tokens(pos_BT, reading.segment_BT)
    if reading.generated is not None or (spec.mask.reach is not None and not spec.consecutive):
        tokens = tokens._replace(place=reading.place(length))  # else, positions are places
    if log_decay_BTN is not None:
        tokens = tokens._replace(decay=cumulated(log_decay_BTN, reading.segment_BT))
    return Heads(q_BTNH, k_BTNH, tokens, Terms(bias, scales.on_logits_BT, scales.on_bias_BT))
