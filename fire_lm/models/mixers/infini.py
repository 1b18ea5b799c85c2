"""Infini-attention (Munkhdalai et al., 2024, 2404.07143) as a mixer.

Attention sees the tokens of its own segment; a memory of constant size holds all earlier ones.

Shapes: B batch, T tokens, K continuations, G segments, U tokens of a segment, N heads, H head dim
of keys, V that of values, D model, L layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from fire_lm.attention import Mask
from fire_lm.attention.cached import NewKeys, OwnKeys
from fire_lm.errors import UserError
from fire_lm.models.layer_position import Position
from fire_lm.models.mixers.attention import Attention
from fire_lm.models.mixers.base import DIAGNOSTICS, LayerSpec, Mixer, Prompts, Reading, State
from fire_lm.models.mixers.infini_memory import (
    Cut,
    Memory,
    Rule,
    by_segment,
    cut_rows,
    features,
    ids_of_segments,
    like,
    memories,
    new_values,
    retrieved,
    sums,
)

_ATTENTION = Attention()
GATE = "mixer_gate"


class Remembered(NamedTuple):
    """What decoding remembers of the tokens besides the keys of their segment.

    Attributes:
      before: The memory before the segment of the next token.
      segment: What the tokens of this segment will add to it.
    """

    before: Memory
    segment: Memory


class Own(NamedTuple):
    """What each continuation has of its own: the keys of its tokens, and the memory."""

    keys: OwnKeys
    memory: Remembered


class NewToken(NamedTuple):
    """What a new token adds: its key for attention, and its key's features and values, float32."""

    keys: NewKeys
    s_BKNH: jax.Array
    v_BKNV: jax.Array


@dataclasses.dataclass(frozen=True)
class InfiniAttention(Mixer):
    """Attention within segments, and a memory of all earlier segments, mixed by a gate per head.

    Borders between segments are at multiples of `segment` tokens of a row. In packed rows, both
    attention and memory are restricted to a token's own document.

    Attributes:
      segment: The number of tokens in a segment.
      rule: The update of the memory: "linear" (Eq. 4) or "delta" (Eq. 5).
      gate_init: The initial gate before the sigmoid; the memory has the weight sigmoid(gate).
      backward_segments: k: gradients do not cross every k-th border between segments. None means
        that they cross all.
    """

    evaluation_fields: ClassVar[tuple[str, ...]] = ("segment",)
    options: ClassVar[tuple[str, ...]] = ("log_n", "encoding", "attention_dropout")

    segment: int
    rule: Rule = "linear"
    gate_init: float = 0.0
    backward_segments: int | None = None

    def __post_init__(self) -> None:
        for name in ("segment", "backward_segments"):
            tokens = getattr(self, name)
            if tokens is None and name == "backward_segments":
                continue
            if type(tokens) is not int or tokens < 1:
                raise UserError(
                    f"InfiniAttention.{name} is {tokens!r}: it must be a positive integer"
                )
        if self.rule not in get_args(Rule):
            known = " or ".join(f"'{rule}'" for rule in get_args(Rule))
            raise UserError(f"InfiniAttention.rule is {self.rule!r}: it must be {known}")
        if not math.isfinite(self.gate_init):
            raise UserError(f"InfiniAttention.gate_init is {self.gate_init}: it must be finite")

    def __str__(self) -> str:
        return f"memory of segments of {self.segment} ({self.rule})"

    def __call__(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BTD: jax.Array,
        reading: Reading,
        position: Position,
    ) -> tuple[jax.Array, Any]:
        gate_N = self.gate(layer, spec)
        batch, length = y_BTD.shape[:2]
        projected = _ATTENTION.projected(spec, y_BTD)
        in_segments = dataclasses.replace(spec, mask=Mask(chunk=self.segment))
        per_head = _ATTENTION.per_head(layer, in_segments)
        spec, local = dataclasses.replace(spec, mask=self.attention_mask(spec.mask)), reading
        if length > self.segment:
            ids_BT = ids_of_segments(reading.segment_BT, length, self.segment)
            ids_BT = jnp.broadcast_to(ids_BT, (batch, length))
            local = reading._replace(segment_BT=ids_BT, seen_BT=None)
        y_BTNV, keys = _ATTENTION.attended(layer, spec, y_BTD, projected, per_head, local, position)
        remembered = None
        if length > self.segment or reading.lengths_B is not None:
            y_BTNV, remembered = self.with_memory(layer, gate_N, projected, y_BTNV, reading)
        return _ATTENTION.output(spec, y_BTNV, y_BTD), (keys, remembered)

    @jax.named_scope("memory")
    def with_memory(
        self,
        layer: nn.Module,
        gate_N: jax.Array,
        projected: tuple[jax.Array, jax.Array, jax.Array],
        y_BTNV: jax.Array,
        reading: Reading,
    ) -> tuple[jax.Array, Remembered | None]:
        """Return local attention mixed with what the memory returns, and what decoding needs.

        `projected` are the queries, keys and values before any rotation, and `y_BTNV` is the output
        of local attention. The other arguments are those of `__call__`.
        """
        q_BTNH, k_BTNH, v_BTNV = projected
        batch, length = q_BTNH.shape[:2]
        s_BGUNH, v_BGUNV = (by_segment(x, self.segment) for x in (features(k_BTNH), v_BTNV))
        cut = cut_rows(reading.segment_BT, length, self.segment)
        memory = memories(self.rule, s_BGUNH, v_BGUNV, cut, self.backward_segments)
        if length > self.segment:
            read_BGUNV = retrieved(memory, by_segment(features(q_BTNH), self.segment))
            read_BTNV = read_BGUNV.reshape(batch, -1, *read_BGUNV.shape[3:])[:, :length]
            reads_BT = cut.reads_BGU.reshape(len(cut.reads_BGU), -1)[:, :length]
            _sow(layer, memory, gate_N, read_BTNV, y_BTNV, reads_BT)
            y_BTNV = mixed(gate_N, read_BTNV, y_BTNV, reads_BT)
        remembered = None
        if reading.lengths_B is not None:
            remembered = self.remembered(memory, s_BGUNH, v_BGUNV, cut, reading.lengths_B)
        return y_BTNV, remembered

    def step(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BKD: jax.Array,
        reading: Reading,
        position: Position,
        state: State,
    ) -> tuple[jax.Array, NewToken]:
        gate_N = self.gate(layer, spec)
        q_BKNH, k_BKNH, v_BKNV = projected = _ATTENTION.projected(spec, y_BKD)
        spec = dataclasses.replace(spec, mask=Mask(chunk=self.segment))
        keys = state._replace(own=state.own.keys)
        y_BKNV, new = _ATTENTION.attended_step(
            layer, spec, y_BKD, projected, reading, position, keys
        )
        with jax.named_scope("memory"):
            s_BKNH, before = features(k_BKNH), state.own.memory.before
            reads_BK = reading.place(1) >= self.segment
            read_BKNV = retrieved(before, features(q_BKNH)[:, :, None])[:, :, 0]
            y_BKNV = mixed(gate_N, read_BKNV, y_BKNV, reads_BK)
            values_BKNV = new_values(
                *(self.rule, before, s_BKNH[:, :, None], v_BKNV[:, :, None], reads_BK[:, :, None])
            )[:, :, 0]
        return _ATTENTION.output(spec, y_BKNV, y_BKD), NewToken(new, s_BKNH, values_BKNV)

    def keys_per_token(self, mask: Mask, length: int, head_dim: int) -> float:
        """Return the keys of a segment and the products with the memory, counted as keys.

        Reading and writing a memory take as many FLOPs as attention to `head_dim` keys; by the
        delta rule, half as many again.
        """
        if length <= self.segment:
            return length
        return self.segment + head_dim * (1.5 if self.rule == "delta" else 1.0)

    def attention_mask(self, mask: Mask) -> Mask:
        """Return a window that no token of a segment exceeds; kernels skip what it excludes."""
        return Mask(window=self.segment)

    def cuts_rows(self, length: int) -> bool:
        return length > self.segment

    def start(self, kept: Any, prompts: Prompts, mask: Mask) -> State:
        keys, remembered = kept
        state = _ATTENTION.start(keys, prompts, Mask(chunk=self.segment))
        copies = super().start(remembered, prompts, mask).own
        return state._replace(own=Own(state.own, copies))

    def append(self, state: State, new: NewToken, reading: Reading) -> State:
        keys = _ATTENTION.append(state._replace(own=state.own.keys), new.keys, reading)
        before, segment = state.own.memory
        added = Memory(new.s_BKNH[..., None] * new.v_BKNV[..., None, :], new.s_BKNH)
        segment = jax.tree.map(jnp.add, segment, added)
        full_BK = (reading.place(1) + 1) % self.segment == 0
        return keys._replace(own=Own(keys.own, turned(full_BK[None], before, segment)))

    def learned_scalars(self, params: Mapping[str, Any]) -> dict[str, jax.Array]:
        gates_N = jax.nn.sigmoid(params[GATE])
        gates = {f"gate_{head}": gates_N[head] for head in range(gates_N.shape[0])}
        return _ATTENTION.learned_scalars(params) | gates

    def gate(self, layer: nn.Module, spec: LayerSpec) -> jax.Array:
        """Return the learned gates before the sigmoid."""
        start = nn.initializers.constant(self.gate_init)
        return layer.param(GATE, start, (spec.size.num_heads,))

    def remembered(
        self, memory: Memory, s_BGUNH: jax.Array, v_BGUNV: jax.Array, cut: Cut, lengths_B: jax.Array
    ) -> Remembered:
        """Return what decoding needs after prompts of `lengths_B` tokens.

        `memory` is that before each segment. The other arguments are those of `memories`.
        """
        index_B = (lengths_B - 1) // self.segment
        batch = jnp.arange(len(lengths_B))

        def of_last(x_BG: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x_BG, (len(batch), *x_BG.shape[1:]))[batch, index_B]

        before, s_BUNH, v_BUNV = (jax.tree.map(of_last, x) for x in (memory, s_BGUNH, v_BGUNV))
        count_B = lengths_B - index_B * self.segment
        is_token_BU = jnp.arange(self.segment)[None] < count_B[:, None]
        v_BUNV = new_values(self.rule, before, s_BUNH, v_BUNV, of_last(cut.reads_BGU))
        segment = sums(s_BUNH, v_BUNV, is_token_BU)
        return turned(count_B == self.segment, before, segment)


def mixed(
    gate_N: jax.Array, read_BTNV: jax.Array, local_BTNV: jax.Array, reads_BT: jax.Array
) -> jax.Array:
    """Return g A_mem + (1 - g) A_dot with g = sigmoid(gate), Eq. 6, in the dtype of `local_BTNV`.

    Tokens that read no memory, such as those of the first segment, have no gate.
    """
    g_11N1 = jax.nn.sigmoid(gate_N)[None, None, :, None]
    both_BTNV = g_11N1 * read_BTNV + (1 - g_11N1) * local_BTNV.astype(jnp.float32)
    return jnp.where(reads_BT[..., None, None], both_BTNV.astype(local_BTNV.dtype), local_BTNV)


def turned(full_B: jax.Array, before: Memory, segment: Memory) -> Remembered:
    """Return what is remembered at the start of a token, after full segments become memory."""
    return Remembered(
        jax.tree.map(lambda x, y: jnp.where(like(full_B, x), x + y, x), before, segment),
        jax.tree.map(lambda y: jnp.where(like(full_B, y), 0.0, y), segment),
    )


def _sow(
    layer: nn.Module,
    memory: Memory,
    gate_N: jax.Array,
    read_BTNV: jax.Array,
    local_BTNV: jax.Array,
    reads_BT: jax.Array,
) -> None:
    """Record the norm of M before the last segment, and the share of A_mem in what is mixed.

    The norm is the root mean square over rows and heads. The share is |g A_mem| / (|g A_mem| +
    |(1 - g) A_dot|), as a mean over heads and the tokens that read a memory.
    """
    if not layer.is_mutable_collection(DIAGNOSTICS):
        return
    g_N = jax.nn.sigmoid(gate_N)
    norm = jnp.sqrt(jnp.mean(jnp.sum(jnp.square(memory.M[:, -1]), axis=(-2, -1))))
    mem_BTN = g_N[None, None] * jnp.linalg.norm(read_BTNV, axis=-1)
    dot_BTN = (1 - g_N)[None, None] * jnp.linalg.norm(local_BTNV.astype(jnp.float32), axis=-1)
    share_BT = jnp.mean(mem_BTN / jnp.maximum(mem_BTN + dot_BTN, 1e-15), axis=-1)
    counts_BT = jnp.broadcast_to(reads_BT, share_BT.shape).astype(jnp.float32)
    share = jnp.sum(share_BT * counts_BT) / jnp.maximum(jnp.sum(counts_BT), 1.0)
    for name, value in (("memory_norm", norm), ("memory_share", share)):
        layer.sow(
            *(DIAGNOSTICS, name, jax.lax.stop_gradient(value)),
            reduce_fn=lambda _, new: new,
            init_fn=lambda: jnp.float32(0),
        )
