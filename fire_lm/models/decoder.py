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
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.attention import Implementation, attend
from fire_lm.errors import UserError
from fire_lm.models.layers import contract, layer_norm
from fire_lm.models.sizes import ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params

Remat = Literal["none", "dots", "full"]

# What the forward pass of a layer keeps for the backward pass; the rest is computed again.
_REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    "full": jax.checkpoint_policies.nothing_saveable,
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
    """One layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    size: ModelSize
    position: PositionalEncoding
    attention: Implementation
    activation_sharding: NamedSharding | None

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, pos_BT: jax.Array, shared: Params | None
    ) -> tuple[jax.Array, None]:
        size = self.size
        width = (size.hidden_size,)
        residual_std = size.init_std / math.sqrt(2 * size.num_layers)
        params = init_position(self, self.position) if shared is None else shared

        x_BTD = constrain(x_BTD, self.activation_sharding)
        y_BTD = LayerNorm(name="attention_norm")(x_BTD)
        heads = (size.num_heads, size.head_dim)
        to_heads = functools.partial(Linear, "BTD,DNH->BTNH", std=size.init_std)
        q_BTNH = to_heads(heads, name="query")(y_BTD)
        k_BTNH = to_heads(heads, name="key")(y_BTD)
        v_BTNH = to_heads(heads, name="value")(y_BTD)
        length = x_BTD.shape[1]
        q_BTNH, k_BTNH = self.position.rotate(params, q_BTNH, k_BTNH, pos_BT, pos_BT, length)
        y_BTNH = attend(
            q_BTNH,
            k_BTNH,
            v_BTNH,
            q_pos_BT=pos_BT,
            k_pos_BS=pos_BT,
            bias=lambda q_pos, k_pos: self.position.bias(params, q_pos, k_pos, length),
            logit_scale_BT=self.position.logit_scale(params, pos_BT),
            implementation=self.attention,
        )
        from_heads = Linear("BTNH,NHD->BTD", width, residual_std, name="attention_out")
        x_BTD = x_BTD + from_heads(y_BTNH)

        y_BTD = LayerNorm(name="mlp_norm")(x_BTD)
        mlp_in = Linear("BTD,DF->BTF", (size.mlp_size,), size.init_std, name="mlp_in")
        mlp_out = Linear("BTF,FD->BTD", width, residual_std, name="mlp_out")
        x_BTD = x_BTD + mlp_out(nn.gelu(mlp_in(y_BTD), approximate=True))
        return constrain(x_BTD, self.activation_sharding), None


class Decoder(nn.Module):
    """Tokens and positions to next-token logits.

    Attributes:
      size: see `models/sizes.py`.
      position: the positional encoding, used by every layer.
      vocab_size: V, rows of the embedding; at least the vocabulary's ids.
      dtype: of activations and matrix products; parameters, logits and softmax are float32.
      remat: what the backward pass recomputes ("none", "dots" = all but matrix products, "full").
      attention: see `attention.choose_implementation`.
      share_position: one set of the encoding's parameters for all layers (FIRE-S, T5) instead of
        one set a layer.
      activation_sharding: of `[B, T, D]` between layers; None leaves it to the compiler.
    """

    size: ModelSize
    position: PositionalEncoding
    vocab_size: int
    dtype: Any = jnp.float32
    remat: Remat = "none"
    attention: Implementation = "auto"
    share_position: bool = False
    activation_sharding: NamedSharding | None = None

    @nn.compact
    def __call__(self, tokens_BT: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """`tokens_BT` int32, `pos_BT` int32 `[B or 1, T]` -> logits `[B, T, V]` float32."""
        table_shape = (self.vocab_size, self.size.hidden_size)
        table_VD = self.param("embedding", nn.initializers.normal(self.size.init_std), table_shape)
        shared = init_position(self, self.position) if self.share_position else None

        # Looked up from the whole table: the compiler finds no efficient way from a lookup in a
        # split one to activations that are split by the batch.
        x_BTD = jnp.take(replicate(table_VD, self.activation_sharding), tokens_BT, axis=0)
        x_BTD = constrain(x_BTD.astype(self.dtype), self.activation_sharding)
        x_BTD = self.position.embed(shared or {}, x_BTD, pos_BT)

        block = Block
        if self.remat != "none":
            # Inside a scan, nothing can be merged across iterations: prevent_cse only costs.
            block = nn.remat(Block, policy=_REMAT_POLICIES[self.remat], prevent_cse=False)
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=self.size.num_layers,
        )(self.size, self.position, self.attention, self.activation_sharding, name="layers")
        x_BTD, _ = layers(x_BTD, pos_BT, shared)

        x_BTD = LayerNorm(name="final_norm")(x_BTD)
        return contract("BTD,VD->BTV", x_BTD, table_VD)


def init_position(module: nn.Module, position: PositionalEncoding) -> Params:
    """The encoding's parameters as one tree under `module`'s "position"; {} if it has none."""
    if not jax.eval_shape(position.init, jax.random.key(0)):
        return {}  # Linen would keep an empty entry, which a checkpoint does not.
    return module.param("position", position.init)


def constrain(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """`x` laid out as `sharding`; None leaves it to the compiler."""
    return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)


def replicate(x: jax.Array, like: NamedSharding | None) -> jax.Array:
    """`x` whole on every device of the mesh of `like`."""
    return constrain(x, None if like is None else NamedSharding(like.mesh, PartitionSpec()))


def build_decoder(
    size: ModelSize,
    position: Callable[..., PositionalEncoding],
    vocab_size: int,
    train_length: int,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    remat: Remat = "none",
    attention: Implementation = "auto",
    share_position: bool = False,
) -> Decoder:
    """A decoder whose encoding knows its heads and the training length.

    `position` is an encoding's class, or any callable with its signature.
    """
    encoding = position(num_heads=size.num_heads, head_dim=size.head_dim, train_length=train_length)
    embeds = type(encoding).embed is not PositionalEncoding.embed
    if embeds and not share_position and jax.eval_shape(encoding.init, jax.random.key(0)):
        raise UserError(
            f"{type(encoding).__name__} has parameters for the embedding, of which there is one: "
            "set build_decoder.share_position = True"
        )
    return Decoder(
        size=size,
        position=encoding,
        vocab_size=vocab_size,
        dtype=jnp.dtype(dtype),
        remat=remat,
        attention=attention,
        share_position=share_position,
    )
