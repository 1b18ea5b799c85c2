"""Softmax attention as a mixer: projections to heads, the encoding's terms, and a cache of keys.

Shapes: B batch, T tokens, K continuations, S keys, N heads, H head dim, D model, L layers, P
prompt, C context.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fire_lm.attention import BiasFn, CommonBias, Layout, Mask, TabulatedBias, Terms, Tokens, attend
from fire_lm.attention.cached import NewKeys, attend_cached, cached_keys, written
from fire_lm.attention.decay import cumulative_decay, extended
from fire_lm.models.dropout import DROPOUT, drop_values
from fire_lm.models.layer_position import Position, log_decay, positioned
from fire_lm.models.layouts import heads_sharding
from fire_lm.models.mixers.base import LayerSpec, Mixer, Prompts, Reading, State
from fire_lm.models.modules import Linear
from fire_lm.models.segments import keys_under
from fire_lm.positions.base import Params
from fire_lm.positions.log_n import LogN


class Heads(NamedTuple):
    """What attention in a layer computes from the tokens of a call: queries and keys, rotated."""

    q_BTNH: jax.Array
    k_BTNH: jax.Array
    tokens: Tokens
    terms: Terms


class PerHead(NamedTuple):
    """What attention in a layer learns for each head, float32 `[N]`, or None.

    Attributes:
      log_n_N: The factor on log n; see `LogN.learned`.
      sink_N: The logit of the sink; see `Terms`.
    """

    log_n_N: jax.Array | None = None
    sink_N: jax.Array | None = None

    @staticmethod
    def of_layer(params: Mapping[str, Any]) -> PerHead:
        return PerHead(params.get("mixer_log_n"), params.get("mixer_sink"))


@dataclasses.dataclass(frozen=True)
class Attention(Mixer):
    """Multi-head softmax attention with the layer's encoding.

    Attributes:
      sink: Whether each head has a sink with a learned logit, which takes part in the softmax like
        a key with the value 0 (as in gpt-oss). Parameters per layer for 12 heads: 12.
      output_gate: Whether the output of each head is multiplied by a sigmoid of the layer's input
        (the headwise gate of arXiv:2505.06708). Parameters per layer for 12 heads and a width of
        768: 9,228.
    """

    options = (
        *("window", "chunk", "log_n", "encoding", "attention_dropout"),
        *("bidirectional", "sequence"),
    )

    sink: bool = False
    output_gate: bool = False

    def __str__(self) -> str:
        """Return the settings that differ from their defaults, for tables."""
        return ", ".join(
            field.name.replace("_", " ")
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )

    def __call__(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BTD: jax.Array,
        reading: Reading,
        position: Position,
    ) -> tuple[jax.Array, Any]:
        projected = self.projected(spec, y_BTD)
        per_head = self.per_head(layer, spec)
        y_BTNH, kept = self.attended(layer, spec, y_BTD, projected, per_head, reading, position)
        return self.output(spec, y_BTNH, y_BTD), kept

    def attended(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BTD: jax.Array,
        projected: tuple[jax.Array, jax.Array, jax.Array],
        per_head: PerHead,
        reading: Reading,
        position: Position,
    ) -> tuple[jax.Array, Any]:
        """Return what `__call__` does, before the output projection, `[B, T, N, H]`."""
        q_BTNH, k_BTNH, v_BTNH = projected
        if spec.attention_dropout:
            v_BTNH = drop_values(v_BTNH, spec.attention_dropout, layer.make_rng(DROPOUT))
        log_decay_BTN = log_decay(spec.encoding, position.params, y_BTD)
        q_BTNH, k_BTNH, tokens, terms = heads(
            spec, position.params, q_BTNH, k_BTNH, reading, per_head, log_decay_BTN
        )
        if position.tables is not None and terms.bias is not None:
            tables = scaled_tables(position.tables, bias_scale(spec.log_n, per_head))
            terms = terms._replace(bias=TabulatedBias(terms.bias, tables))
        layout = Layout(
            in_order=True,
            consecutive=spec.consecutive,
            sharding=heads_sharding(spec.activation_sharding),
            implementation=spec.attention,
        )
        y_BTNH = attend(q_BTNH, k_BTNH, v_BTNH, tokens, tokens, terms, spec.mask, layout)
        return y_BTNH, (k_BTNH, v_BTNH, tokens.decay)

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
        y_BKNH, new = self.attended_step(layer, spec, y_BKD, projected, reading, position, state)
        return self.output(spec, y_BKNH, y_BKD), new

    def attended_step(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BKD: jax.Array,
        projected: tuple[jax.Array, jax.Array, jax.Array],
        reading: Reading,
        position: Position,
        state: State,
    ) -> tuple[jax.Array, NewKeys]:
        """Return what `step` does, before the output projection, `[B, K, N, H]`."""
        q_BKNH, k_BKNH, v_BKNH = projected
        per_head = self.per_head(layer, spec)
        q_BKNH, k_BKNH, tokens, terms = heads(
            spec, position.params, q_BKNH, k_BKNH, reading, per_head
        )
        # All continuations of a prompt are at the same position.
        token, logit_scale_B1, bias_scale_B1 = jax.tree.map(
            lambda x: x[:, :1], (tokens, terms.logit_scale_BT, terms.bias_scale_BT)
        )
        terms = terms._replace(logit_scale_BT=logit_scale_B1, bias_scale_BT=bias_scale_B1)
        new = NewKeys(k_BKNH, v_BKNH)
        if (log_decay_BKN := log_decay(spec.encoding, position.params, y_BKD)) is not None:
            new = new._replace(decay_BKN=extended(state.own.last_BKN, log_decay_BKN))
        y_BKNH = attend_cached(
            q_BKNH, new, state.prompt, state.own, token, state.common, terms, spec.mask
        )
        return y_BKNH, new

    def learned_scalars(self, params: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return the s of SSMax and the logit of the sink of each head, such as "s_0"."""
        log_n_N, sink_N = PerHead.of_layer(params)
        return {
            f"{name}_{head}": value_N[head]
            for name, value_N in (("s", log_n_N), ("sink", sink_N))
            if value_N is not None
            for head in range(value_N.shape[0])
        }

    def keys_per_token(self, mask: Mask, length: int, head_dim: int) -> float:
        return length if mask.most_keys is None else min(length, mask.most_keys)

    def attention_mask(self, mask: Mask) -> Mask:
        return mask

    def start(self, kept: Any, prompts: Prompts, mask: Mask) -> State:
        k_LBPNH, v_LBPNH, decay_LBPN = kept
        return State(*cached_keys(k_LBPNH, v_LBPNH, decay_LBPN, *prompts, mask=mask))

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

    def per_head(self, layer: nn.Module, spec: LayerSpec) -> PerHead:
        """Return the layer's parameters for each head."""
        shape, params = (spec.size.num_heads,), {}
        if spec.log_n is not None and spec.log_n.learned:
            start = spec.log_n.initial_scale(spec.encoding.train_length, spec.mask)
            params["mixer_log_n"] = nn.initializers.constant(start)
        if self.sink:
            params["mixer_sink"] = nn.initializers.zeros
        return PerHead.of_layer(
            {name: layer.param(name, start, shape) for name, start in params.items()}
        )

    def output(self, spec: LayerSpec, y_BTNH: jax.Array, y_BTD: jax.Array) -> jax.Array:
        """Return the layer's addition to the residual stream, `[B, T, D]`.

        `y_BTNH` is the output of each head, and `y_BTD` the normed input.
        """
        if self.output_gate:
            logit_BTN = Linear((spec.size.num_heads,), spec.size.init_std, name="mixer_gate")(y_BTD)
            gate_BTN1 = jax.nn.sigmoid(logit_BTN.astype(jnp.float32))[..., None]
            y_BTNH = (y_BTNH.astype(jnp.float32) * gate_BTN1).astype(y_BTNH.dtype)
        return Linear((spec.size.hidden_size,), spec.residual_std, name="attention_out")(y_BTNH)


def heads(
    spec: LayerSpec,
    params: Params,
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    reading: Reading,
    per_head: PerHead,
    log_decay_BTN: jax.Array | None = None,
) -> Heads:
    """Return the queries and keys as the encoding transforms them, and the terms of the logits.

    `params` are the prepared parameters of the encoding, and `log_decay_BTN` are the log forget
    gates of the tokens of complete texts, or None.
    """
    length = q_BTNH.shape[1]
    seen_BT = None
    if spec.log_n is not None:
        seen_BT = keys_under(spec.mask, reading.place(length), reading.segment_BT)
    pos_BT = reading.pos_BT
    q_BTNH, k_BTNH, scales, bias = positioned(
        spec.encoding,
        params,
        spec.log_n,
        q_BTNH,
        k_BTNH,
        pos_BT,
        pos_BT,
        seen_BT,
        context_length=length if spec.context_length is None else spec.context_length,
    )
    tokens = Tokens(pos_BT, reading.segment_BT)
    if reading.generated is not None or (spec.mask.reach is not None and not spec.consecutive):
        tokens = tokens._replace(place=reading.place(length))  # else, positions are places
    if log_decay_BTN is not None:
        tokens = tokens._replace(decay=cumulative_decay(log_decay_BTN, reading.segment_BT))
    if per_head.log_n_N is not None and spec.log_n is not None and spec.log_n.on != "bias":
        scaled = q_BTNH.astype(jnp.float32) * per_head.log_n_N[None, None, :, None]
        q_BTNH = scaled.astype(q_BTNH.dtype)
    if (scale_N := bias_scale(spec.log_n, per_head)) is not None:
        bias = functools.partial(_scaled_bias, bias, scale_N)
    mix = functools.partial(spec.encoding.mix, params)
    terms = Terms(
        bias,
        scales.on_logits_BT,
        scales.on_bias_BT,
        per_head.sink_N,
        mix if spec.encoding.acts_through("mix") else None,
    )
    return Heads(q_BTNH, k_BTNH, tokens, terms)


def bias_scale(log_n: LogN | None, per_head: PerHead) -> jax.Array | None:
    """Return the learned factor `[N]` of log n on the bias, or None for 1."""
    return None if log_n is None or log_n.on == "logits" else per_head.log_n_N


def scaled_tables(tables: CommonBias, scale_N: jax.Array | None) -> CommonBias:
    """Return the tables of a bias that is multiplied by a factor for each head."""
    if scale_N is None:
        return tables
    scaled = {name: getattr(tables, name) * scale_N[None] for name in ("slope_KN", "offset_KN")}
    return tables._replace(**scaled)


def _scaled_bias(
    bias: BiasFn, scale_N: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array
) -> jax.Array | None:
    bias_BNTS = bias(q_pos_BT, k_pos_BS)
    return None if bias_BNTS is None else bias_BNTS * scale_N[None, :, None, None]
