"""A pre-norm decoder in the style of GPT-3 (Brown et al., 2020, section 2.1; GPT-2's layout).

LayerNorm before attention and MLP and at the end, biases in every linear layer, tanh GeLU, head
tied to the embedding. Weights start from N(0, std) with std = 0.02, those that write into the
residual stream from N(0, std / sqrt(2 layers)), biases from 0. Departures from GPT-3: no position
embedding of its own (that is the subject of study), dense attention in every layer, and no dropout
(Table 9 of the FIRE paper sets it to 0).

Shapes: B batch, T positions, D model, N heads, H head dim, F mlp, V vocab, L layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.attention import (
    Implementation,
    announce,
    attend,
    choose_implementation,
)
from fire_lm.attention.cached import CachedKeys, attend_cached
from fire_lm.attention.kept import KEPT
from fire_lm.models.layer_position import (
    Position,
    Shared,
    init_position,
    position_name,
    positioned,
    prepare_position,
)
from fire_lm.models.layers import contract, layer_norm
from fire_lm.models.segments import keys_seen
from fire_lm.models.sizes import ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import Resampling

Remat = Literal["none", "dots", "full"]


class Kept(NamedTuple):
    """What decoding keeps of a layer: keys as attention takes them, values, and the encoding's own
    parameters as prepared ({} where layers share them)."""

    k_BSNH: jax.Array
    v_BSNH: jax.Array
    position: Params


class Past(NamedTuple):
    """What one layer, or all along a leading axis, read before.

    `position` is that of `Kept`.
    """

    keys: CachedKeys
    position: Params


class Reading(NamedTuple):
    """Where the tokens of a call stand.

    Attributes:
      pos_BT: their positions.
      segment_BT: of which document each is; None for one a row.
      seen_BT: how many keys each sees, where there are keys of the past, else None.
      past_pos_BS: positions of the keys of the past, or None.
    """

    pos_BT: jax.Array
    segment_BT: jax.Array | None
    seen_BT: jax.Array | None = None
    past_pos_BS: jax.Array | None = None


# What the forward pass of a layer keeps for the backward pass; the rest is computed again.
_ATTENTION = jax.checkpoint_policies.save_only_these_names(KEPT)
_REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims, _ATTENTION
    ),
    "full": _ATTENTION,
}


class LayerNorm(nn.Module):
    """Holds scale and bias of `layer_norm`."""

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        shape = (x_BTD.shape[-1],)
        scale_D = self.param("scale", nn.initializers.ones, shape)
        return layer_norm(x_BTD, scale_D, self.param("bias", nn.initializers.zeros, shape))


class Linear(nn.Module):
    """`contract(equation, x, kernel) + bias` in x's dtype; the kernel's axes are inputs first."""

    equation: str
    out_shape: tuple[int, ...]
    std: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        num_in_axes = len(self.equation.split("->")[0].split(",")[1]) - len(self.out_shape)
        shape = x.shape[-num_in_axes:] + self.out_shape
        kernel = self.param("kernel", nn.initializers.normal(self.std), shape)
        bias = self.param("bias", nn.initializers.zeros, self.out_shape)
        # Added in float32, so that its gradient is summed in float32 too.
        out = contract(self.equation, x, kernel)
        return (out + bias[(None,) * (out.ndim - bias.ndim)]).astype(x.dtype)


class Block(nn.Module):
    """One layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`.

    With `keep` it returns its keys and values too. `context_length`: of the whole input; None: what
    it is given is all of it.
    """

    size: ModelSize
    encoding: PositionalEncoding
    log_n: LogN | None
    attention: Implementation
    activation_sharding: NamedSharding | None
    context_length: int | None = None
    keep: bool = False

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
        alone = shared is None  # with parameters of its own
        if shared is not None:
            params, tables = shared
        elif past is not None:
            params, tables = past.position, None
        else:
            own = init_position(self, encoding)
            params, tables = prepare_position(encoding, own, self.attention, length)

        x_BTD = constrain(x_BTD, self.activation_sharding)
        y_BTD = LayerNorm(name="attention_norm")(x_BTD)
        heads = (size.num_heads, size.head_dim)
        to_heads = functools.partial(Linear, "BTD,DNH->BTNH", std=size.init_std)
        q_BTNH = to_heads(heads, name="query")(y_BTD)
        k_BTNH = to_heads(heads, name="key")(y_BTD)
        v_BTNH = to_heads(heads, name="value")(y_BTD)
        seen_BT = reading.seen_BT
        if log_n is not None and seen_BT is None:
            seen_BT = keys_seen(length, segment_BT)
        q_BTNH, k_BTNH, scales, bias = positioned(
            *(encoding, params, log_n, q_BTNH, k_BTNH, pos_BT, pos_BT, seen_BT),
            context_length=length if self.context_length is None else self.context_length,
        )
        if past is not None:
            assert reading.past_pos_BS is not None
            y_BTNH = attend_cached(
                *(q_BTNH, k_BTNH, v_BTNH, past.keys),
                q_pos_B1=pos_BT[:, :1],
                cached_pos_BS=reading.past_pos_BS,
                bias=bias,
                logit_scale_B1=None if scales.on_logits_BT is None else scales.on_logits_BT[:, :1],
                bias_scale_B1=None if scales.on_bias_BT is None else scales.on_bias_BT[:, :1],
            )
        else:
            y_BTNH = attend(
                q_BTNH,
                k_BTNH,
                v_BTNH,
                q_pos_BT=pos_BT,
                k_pos_BS=pos_BT,
                bias=bias,
                logit_scale_BT=scales.on_logits_BT,
                bias_scale_BT=scales.on_bias_BT,
                q_segment_BT=segment_BT,
                k_segment_BS=segment_BT,
                in_order=True,
                tables=tables,
                sharding=heads_sharding(self.activation_sharding),
                implementation=self.attention,
            )
        from_heads = Linear("BTNH,NHD->BTD", width, residual_std, name="attention_out")
        x_BTD = x_BTD + from_heads(y_BTNH)

        y_BTD = LayerNorm(name="mlp_norm")(x_BTD)
        mlp_in = Linear("BTD,DF->BTF", (size.mlp_size,), size.init_std, name="mlp_in")
        mlp_out = Linear("BTF,FD->BTD", width, residual_std, name="mlp_out")
        x_BTD = x_BTD + mlp_out(nn.gelu(mlp_in(y_BTD), approximate=True))
        kept = Kept(k_BTNH, v_BTNH, params if alone else {}) if self.keep else None
        return constrain(x_BTD, self.activation_sharding), kept


class Group(nn.Module):
    """As many layers as there are encodings that take turns, one after the other."""

    blocks: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        reading: Reading,
        shared: Shared,
        past: tuple[Past, ...] | None,
    ) -> tuple[jax.Array, tuple[Kept | None, ...]]:
        kept = []
        for index, (block, params) in enumerate(zip(self.blocks, shared, strict=True)):
            own = None if past is None else past[index]
            x_BTD, keys = block(name=f"block_{index}")(x_BTD, reading, params, own)
            kept.append(keys)
        return x_BTD, tuple(kept)


class Decoder(nn.Module):
    """Tokens and positions to next-token logits.

    Attributes:
      size: see `models/sizes.py`.
      encodings: the positional encoding of the layers; several take turns, layer by layer.
      vocab_size: V, rows of the embedding; at least the vocabulary's ids.
      dtype: of activations and matrix products; parameters, logits and softmax are float32.
      remat: what the backward pass recomputes ("none", "dots" = all but matrix products, "full");
        the output of the attention kernel and the statistics of norms are kept.
      scan_layers: whether the program loops over the layers, which is compiled sooner, or has each
        written out, which is faster, since what a layer keeps is not copied into one array of all.
      attention: see `attention.choose_implementation`.
      log_n: attention scaled by log n, or None.
      resampling: where tokens stand; for those who call the decoder, which is given positions.
      share_position: one set of the encoding's parameters for all layers (FIRE-S, T5) instead of
        one set a layer.
      activation_sharding: of `[B, T, D]` between layers; None leaves it to the compiler.
    """

    size: ModelSize
    encodings: tuple[PositionalEncoding, ...]
    vocab_size: int
    dtype: Any = jnp.float32
    remat: Remat = "none"
    scan_layers: bool = True
    attention: Implementation = "auto"
    log_n: LogN | None = None
    resampling: Resampling = Resampling()
    share_position: bool = False
    activation_sharding: NamedSharding | None = None

    def prefill(
        self, tokens_BP: jax.Array, pos_BP: jax.Array, lengths_B: jax.Array, context_length: int
    ) -> tuple[jax.Array, tuple[Kept, ...]]:
        """Reads prompts, as in training: (logits `[B, V]` of the token after each, what to keep).

        `tokens_BP` is padded to the right; `lengths_B` int32 counts the tokens before the padding.
        What is kept is there for each encoding that takes turns, with an axis of its layers.
        """
        out = self(tokens_BP, pos_BP, None, context_length, lengths_B)
        assert isinstance(out, tuple)
        return out[0][:, 0], out[1]

    def step(
        self,
        tokens_BK: jax.Array,
        reading: Reading,
        past: tuple[Past, ...],
        context_length: int,
    ) -> tuple[jax.Array, tuple[Kept, ...]]:
        """Reads one more token of each of K continuations: (logits `[B, K, V]`, what to keep).

        `reading.pos_BT` and `seen_BT` are `[B, K]`, the same for all K.
        """
        pos_BK, _, seen_BK, past_pos_BS = reading
        out = self(tokens_BK, pos_BK, None, context_length, None, seen_BK, past_pos_BS, past)
        assert isinstance(out, tuple)
        return out

    @nn.compact
    def __call__(
        self,
        tokens_BT: jax.Array,
        pos_BT: jax.Array,
        segment_BT: jax.Array | None = None,
        context_length: int | None = None,
        lengths_B: jax.Array | None = None,
        seen_BT: jax.Array | None = None,
        past_pos_BS: jax.Array | None = None,
        past: tuple[Past, ...] | None = None,
    ) -> jax.Array | tuple[jax.Array, tuple[Kept, ...]]:
        """Logits `[B, T, V]` float32 of `tokens_BT` int32.

        `pos_BT` `[B or 1, T]` is increasing along T (in each segment, where there are several);
        int32, or float32 where resampled. With `segment_BT` int32 `[B, T]` a token sees those of
        its own segment.

        The other arguments are those of decoding: see `prefill` and `step`, which check no length.
        """
        keep = context_length is not None
        for encoding in () if keep else self.encodings:
            encoding.check_length(tokens_BT.shape[1], tokens_BT.shape[1])
        table_shape = (self.vocab_size, self.size.hidden_size)
        table_VD = self.param("embedding", nn.initializers.normal(self.size.init_std), table_shape)
        shared = self._shared_positions(tokens_BT.shape[1])
        kernel = choose_implementation(self.attention, tokens_BT.shape[1]) == "tpu"
        if kernel and self.resampling != Resampling():
            name = type(self.resampling).__name__
            announce(f"{name}: with a bias, attention at positions other than 0, 1, 2, ... is "
                     "computed in blocks, not by the TPU kernel")  # fmt: skip

        table_VD = gather_table(self.activation_sharding, self.dtype, table_VD)
        # Looked up from the whole table: the compiler finds no efficient way from a lookup in a
        # split one to activations that are split by the batch.
        x_BTD = jnp.take(replicate(table_VD, self.activation_sharding), tokens_BT, axis=0)
        x_BTD = constrain(x_BTD.astype(self.dtype), self.activation_sharding)
        x_BTD = self.encodings[0].embed(shared[0].params if shared[0] else {}, x_BTD, pos_BT)

        block = Block
        if self.remat != "none":
            # Inside a scan, nothing can be merged across iterations: prevent_cse only costs.
            policy, prevent_cse = _REMAT_POLICIES[self.remat], not self.scan_layers
            block = nn.remat(Block, policy=policy, prevent_cse=prevent_cse)
        common = (self.log_n, self.attention, self.activation_sharding, context_length, keep)
        blocks = tuple(
            functools.partial(block, self.size, encoding, *common) for encoding in self.encodings
        )
        alone = len(blocks) == 1  # spares the checkpoint a level of names
        scan = functools.partial(
            nn.scan,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast, nn.broadcast, 0),
            length=self.size.num_layers // len(blocks),
            unroll=1 if self.scan_layers else self.size.num_layers,
        )
        reading = Reading(pos_BT, segment_BT, seen_BT, past_pos_BS)
        if alone:
            layers = scan(block)(self.size, self.encodings[0], *common, name="layers")
            own = None if past is None else past[0]
            x_BTD, only = layers(x_BTD, reading, shared[0], own)
            kept: Any = (only,)
        else:
            x_BTD, kept = scan(Group)(blocks, name="layers")(x_BTD, reading, shared, past)
        if lengths_B is not None:
            x_BTD = jnp.take_along_axis(x_BTD, lengths_B[:, None, None] - 1, axis=1)

        x_BTD = LayerNorm(name="final_norm")(x_BTD)
        logits_BTV = contract("BTD,VD->BTV", x_BTD, table_VD)
        return (logits_BTV, kept) if keep else logits_BTV

    def _shared_positions(self, length: int) -> Shared:
        """What the layers of each encoding share, or Nones; equal encodings share too."""
        if not self.share_position:
            return (None,) * len(self.encodings)
        positions: dict[PositionalEncoding, Position] = {}
        for turn, encoding in enumerate(self.encodings):
            if encoding not in positions:
                own = init_position(self, encoding, position_name(turn))
                positions[encoding] = prepare_position(encoding, own, self.attention, length)
        return tuple(positions[encoding] for encoding in self.encodings)


def heads_sharding(activations: NamedSharding | None) -> NamedSharding | None:
    """Of queries, keys and values `[B, T, N, H]`: the heads are split as their weights are."""
    if activations is None:
        return None
    batch = activations.spec[0]
    heads = "tensor" if "tensor" in activations.mesh.shape else None  # as in fire_lm/sharding.py
    return NamedSharding(activations.mesh, PartitionSpec(batch, None, heads, None))


def constrain(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """`x` laid out as `sharding`; None leaves it to the compiler."""
    return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)


def constrain_rows(x_BT: jax.Array, activations: NamedSharding | None) -> jax.Array:
    """`[B, T]` split by the batch, as `activations` are."""
    if activations is None:
        return x_BT
    rows = PartitionSpec(activations.spec[0], None)
    return constrain(x_BT, NamedSharding(activations.mesh, rows))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather_table(activations: NamedSharding | None, dtype: Any, table_VD: jax.Array) -> jax.Array:
    """The embedding, float32 with the values of `dtype`, no longer split by `fsdp`.

    Gathered once, in `dtype`, for the lookup and the head. Their gradients are sums over the mesh,
    two of them: the compiler resolves each before they are added.
    """
    table_VD = constrain(table_VD.astype(dtype), _of_table(activations, None))
    return table_VD.astype(jnp.float32)


def _gather_table_backward(activations, dtype, _, gradient_VD):
    return (constrain(gradient_VD, _of_table(activations, "fsdp")),)


gather_table.defvjp(lambda *inputs: (gather_table(*inputs), None), _gather_table_backward)


def _of_table(activations: NamedSharding | None, columns: str | None) -> NamedSharding | None:
    """The vocabulary is split as in fire_lm/sharding.py."""
    if activations is None or "tensor" not in activations.mesh.shape:
        return activations and NamedSharding(activations.mesh, PartitionSpec())
    return NamedSharding(activations.mesh, PartitionSpec("tensor", columns))


def replicate(x: jax.Array, like: NamedSharding | None) -> jax.Array:
    """`x` whole on every device of the mesh of `like`."""
    return constrain(x, None if like is None else NamedSharding(like.mesh, PartitionSpec()))
