"""A pre-norm decoder in the style of GPT-3 (Brown et al., 2020, section 2.1; GPT-2's layout).

It has LayerNorm before attention, before the MLP and at the end, biases in every linear layer, the
tanh approximation of GeLU, and a head tied to the embedding. Initial weights are drawn from N(0,
std), where std is the size's `init_std`, or from N(0, std / sqrt(2 layers)) in the layers that add
to the residual stream; biases start at 0. The decoder departs from GPT-3 in three ways: it has no
built-in position embedding (encodings are interchangeable), attention is dense in every layer, and
dropout is off by default (models/dropout.py).

Shapes: B batch, T positions, D model, N heads, H head dim, F mlp, V vocab, L layers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fire_lm.attention import Implementation, choose_implementation
from fire_lm.attention.saved_residuals import SAVED
from fire_lm.errors import UserError
from fire_lm.models.decoder_layer import Common, DecoderLayer, Kept, LayerGroup, Past, Prepared
from fire_lm.models.dropout import DROPOUT, drop
from fire_lm.models.layer_position import (
    Position,
    Shared,
    init_position,
    position_name,
    prepare_position,
)
from fire_lm.models.layouts import constrain, slices_of
from fire_lm.models.mixers import DIAGNOSTICS, LayerSpec, Reading
from fire_lm.models.modules import LayerNorm
from fire_lm.models.sizes import ModelSize
from fire_lm.models.tied_embedding import copies_of_table, logits_of, look_up
from fire_lm.models.turns import Turn
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.resampling import Resampling

Remat = Literal["none", "dots", "full"]


# The values that a layer's forward pass saves for the backward pass; the others are recomputed.
_ATTENTION = jax.checkpoint_policies.save_only_these_names(SAVED)
_REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims, _ATTENTION
    ),
    "full": _ATTENTION,
}


class Decoder(nn.Module):
    """A decoder that maps tokens and positions to next-token logits.

    Attributes:
      size: The shape of the decoder; see `models/sizes.py`.
      turns: The kinds of layer, which alternate.
      vocab_size: V, the number of rows of the embedding; at least the number of vocabulary ids.
      dtype: The dtype of activations and matrix products; parameters, logits and softmax are
        float32.
      remat: The values that the backward pass recomputes: "none", "dots" (all except products with
        weight matrices) or "full". The output of the attention kernel and the statistics of norms
        are always saved.
      scan_layers: Whether the program loops over the layers, which reduces the compile time. The
        unrolled program runs faster, because it does not copy saved activations into one stacked
        array; on CPUs, training therefore always unrolls a few layers (`training.compile`).
      attention: The implementation; see `attention.choose_implementation`.
      resampling: The rule by which positions are drawn. The decoder's callers draw the positions;
        the decoder itself only uses the rule to determine whether positions may have gaps.
      share_position: Whether all layers share one set of the encoding's parameters (FIRE-S, T5);
        otherwise, each layer has its own set.
      dropout: The dropout rate after the embedding, attention and MLP; see models/dropout.py.
      attention_dropout: The dropout rate of attention weights.
      activation_sharding: The sharding of the activations `[B, T, D]` between layers; None leaves
        the choice to the compiler.
    """

    size: ModelSize
    turns: tuple[Turn, ...]
    vocab_size: int
    dtype: Any = jnp.float32
    remat: Remat = "none"
    scan_layers: bool = True
    attention: Implementation = "auto"
    resampling: Resampling = Resampling()
    share_position: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_sharding: NamedSharding | None = None

    @property
    def encodings(self) -> tuple[PositionalEncoding, ...]:
        """The encodings of the turns."""
        return tuple(turn.encoding for turn in self.turns)

    def with_encodings(self, encodings: Iterable[PositionalEncoding]) -> Decoder:
        """Return a copy of the decoder whose turns have other encodings."""
        pairs = zip(self.turns, encodings, strict=True)
        return self.clone(turns=tuple(dataclasses.replace(t, encoding=e) for t, e in pairs))

    def check_slices(self, slices: int) -> None:
        """Raise UserError if rows are to be split into `slices`, and a mixer needs whole rows."""
        for turn in self.turns:
            if slices > 1 and "sequence" not in turn.mixer.options:
                raise UserError(
                    f"MeshShape.sequence is {slices}: it must be 1 for layers with "
                    f"{type(turn.mixer).__name__}, which need whole rows"
                )

    def prefill(
        self, tokens_BP: jax.Array, pos_BP: jax.Array, lengths_B: jax.Array, context_length: int
    ) -> tuple[jax.Array, tuple[Kept, ...]]:
        """Process prompts with the forward pass that training uses.

        Args:
          tokens_BP: The prompts, int32, padded on the right.
          pos_BP: The positions of the tokens, `[B or 1, P]`.
          lengths_B: The number of tokens before the padding, int32.
          context_length: The length of a prompt and its continuation in tokens.

        Returns:
          The logits `[B, V]` of the token that follows each prompt, and one `Kept` for each turn,
          with its layers along a leading axis.

        Raises:
          UserError: Layers see later tokens, so a model of complete texts cannot continue one.
        """
        check_decoder(self)
        reading = Reading(pos_BP, lengths_B=lengths_B)
        logits_B1V, kept = self.read(tokens_BP, reading, context_length)
        return logits_B1V[:, 0], kept

    def step(
        self, tokens_BK: jax.Array, reading: Reading, past: tuple[Past, ...], context_length: int
    ) -> tuple[jax.Array, tuple[Kept, ...]]:
        """Process one more token of each of the K continuations of each prompt.

        `past` is what the layers know of earlier tokens, one `Past` for each turn.
        `pos_BT` and `seen_BT` of `reading` are `[B, K]`, with identical values for all K
        continuations. `context_length` is the length of a prompt and its continuation in tokens.

        Returns:
          The logits `[B, K, V]`, and the `Kept` of each turn, as in `prefill`.
        """
        return self.read(tokens_BK, reading, context_length, past)

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one, as in a decoder; otherwise, this is an encoder."""
        return all(turn.causal for turn in self.turns)

    def __call__(
        self,
        tokens_BT: jax.Array,
        pos_BT: jax.Array,
        segment_BT: jax.Array | None = None,
        seen_BT: jax.Array | None = None,
    ) -> jax.Array:
        """Return the logits `[B, T, V]` float32 of `tokens_BT` int32.

        `pos_BT` `[B or 1, T]` increases along T (within each segment, if there are several); it is
        int32, or float32 if resampled. With `segment_BT` int32 `[B, T]`, a token sees only tokens
        of its own segment, whose id no other segment of the row may have. `seen_BT` `[B or 1, T]`
        is the index of each token in its document, counted from 1, if it does not follow from
        `segment_BT`.
        """
        for encoding in self.encodings:
            encoding.check_length(tokens_BT.shape[1], tokens_BT.shape[1])
        return self.read(tokens_BT, Reading(pos_BT, segment_BT, seen_BT))[0]

    @nn.compact
    def read(
        self,
        tokens_BT: jax.Array,
        reading: Reading,
        context_length: int | None = None,
        past: tuple[Past, ...] | None = None,
    ) -> tuple[jax.Array, tuple[Kept, ...]]:
        """Return the logits of the tokens, and what decoding needs of each turn.

        Args:
          tokens_BT: The tokens, int32.
          reading: Their positions and documents. If it contains the lengths of prompts, the logits
            are those of the token after each prompt, `[B, 1, V]`.
          context_length: The length of the complete input for decoding; None means that `tokens_BT`
            is the complete input, and that the second result is undefined.
          past: What the layers know of earlier tokens, one `Past` for each turn.
        """
        keep, pos_BT = context_length is not None, reading.pos_BT
        table_shape = (self.vocab_size, self.size.hidden_size)
        table_VD = self.param("embedding", nn.initializers.normal(self.size.init_std), table_shape)
        shared = self._shared_positions(tokens_BT.shape[1], context_length)
        slices = slices_of(self.activation_sharding, tokens_BT.shape[1])
        self.check_slices(slices)
        copies_WVD = copies_of_table(
            self.activation_sharding, tokens_BT.shape, self.dtype, table_VD
        )
        x_BTD = look_up(self.activation_sharding, copies_WVD, tokens_BT)
        x_BTD = constrain(x_BTD.astype(self.dtype), self.activation_sharding)
        x_BTD = self.encodings[0].embed(shared[0].params if shared[0] else {}, x_BTD, pos_BT)
        rates = (self.dropout, self.attention_dropout) if self.has_rng(DROPOUT) else (0.0, 0.0)
        if rates[0]:
            x_BTD = drop(x_BTD, rates[0], self.make_rng(DROPOUT))

        layer_class = DecoderLayer
        if self.remat != "none":
            # Inside a scan, the compiler cannot merge recomputed values with the originals, so
            # prevent_cse would only add cost.
            policy, prevent_cse = _REMAT_POLICIES[self.remat], not self.scan_layers
            layer_class = nn.remat(DecoderLayer, policy=policy, prevent_cse=prevent_cse)
        fields = [
            (self._spec(turn, context_length, rates[1]), turn.mixer, keep, rates[0])
            for turn in self.turns
        ]
        scan = functools.partial(
            nn.scan,
            variable_axes={"params": 0, DIAGNOSTICS: 0},
            split_rngs={"params": True, DROPOUT: True},
            in_axes=(nn.broadcast, nn.broadcast, 0),
            length=self.size.num_layers // len(self.turns),
            unroll=1 if self.scan_layers else self.size.num_layers,
        )
        common = tuple(map(Common, shared))
        own: tuple[Past | Prepared | None, ...]
        if past is None:
            own = self._prepared(tokens_BT.shape[1])
        else:
            divided = [of_turn.divided() for of_turn in past]
            common = tuple(Common(p, c) for p, (c, _) in zip(shared, divided, strict=True))
            own = tuple(of_layers for _, of_layers in divided)
        if len(fields) == 1:  # no `LayerGroup`, which would add a level to the names of parameters
            layers = scan(layer_class)(*fields[0], name="layers")
            x_BTD, of_turn = layers(x_BTD, reading, common[0], own[0])
            kept: Any = (of_turn,)
        else:
            turns = tuple(functools.partial(layer_class, *of_turn) for of_turn in fields)
            x_BTD, kept = scan(LayerGroup)(turns, name="layers")(x_BTD, reading, common, own)
        if reading.lengths_B is not None:
            x_BTD = reading.last(x_BTD)[:, None]

        x_BTD = LayerNorm(name="final_norm")(x_BTD)
        logits_BTV = logits_of(copies_WVD, x_BTD, slices)
        return logits_BTV, kept

    def _spec(self, turn: Turn, context_length: int | None, attention_dropout: float) -> LayerSpec:
        return LayerSpec(
            self.size,
            turn.encoding,
            turn.mask,
            turn.log_n,
            self.attention,
            consecutive=self.resampling == Resampling(),
            activation_sharding=self.activation_sharding,
            context_length=context_length,
            attention_dropout=attention_dropout,
        )

    def _prepared(self, length: int) -> tuple[Prepared | None, ...]:
        """Return the prepared parameters of the layers of each turn, or None.

        All layers of a turn are prepared together. It is None if the layers share one set, have no
        parameters (yet), or also need tables, which each layer prepares itself.
        """
        if self.share_position or choose_implementation(self.attention, length) == "tpu":
            return (None,) * len(self.turns)
        layers = self.variables.get("params", {}).get("layers", {})
        prepared: list[Prepared | None] = []
        for index, encoding in enumerate(self.encodings):
            of_turn = layers if len(self.turns) == 1 else layers.get(f"block_{index}", {})
            own = of_turn.get("position")
            prepared.append(Prepared(jax.vmap(encoding.prepare)(own)) if own else None)
        return tuple(prepared)

    def _shared_positions(self, length: int, context_length: int | None) -> Shared:
        """Return, for each encoding, the `Position` that its layers share, or None.

        Identical encodings also share one `Position`.
        """
        if not self.share_position:
            return (None,) * len(self.encodings)
        positions: dict[PositionalEncoding, Position] = {}
        for turn, encoding in enumerate(self.encodings):
            if encoding not in positions:
                own = init_position(self, encoding, position_name(turn))
                positions[encoding] = prepare_position(
                    *(encoding, own, self.attention, length), context_length
                )
        return tuple(positions[encoding] for encoding in self.encodings)


def check_decoder(model: Decoder) -> None:
    """Raise UserError if the model is an encoder, whose tokens see what they would predict."""
    if not model.causal:
        raise UserError(
            "layers that see later tokens cannot generate text, nor score it token by token: use "
            "causal layers, or MaskedAccuracy for encoders"
        )
