"""A layer of the decoder, with the types of the values that decoding keeps.

Shapes: B batch, T positions, D model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from fire_lm.models.dropout import DROPOUT, drop
from fire_lm.models.layer_position import Position, init_position, prepare_position
from fire_lm.models.layers import gelu
from fire_lm.models.layouts import constrain
from fire_lm.models.mixers import LayerSpec, Mixer, Reading, State
from fire_lm.models.modules import LayerNorm, Linear
from fire_lm.positions.base import Params


class Kept(NamedTuple):
    """The values of one layer that decoding needs.

    Attributes:
      mixed: What the mixer returned for the state; see `Mixer`.
      position: The encoding's prepared parameters, or {} if all layers share one set.
    """

    mixed: Any
    position: Params


class Past(NamedTuple):
    """What one layer, or the layers of one turn along a leading axis, know of earlier tokens.

    Attributes:
      state: The state of the mixer.
      position: The prepared parameters, as in `Kept`.
    """

    state: State
    position: Params

    def divided(self) -> tuple[Any, Past]:
        """Return the part of the state that all layers share, and the rest."""
        return self.state.common, self._replace(state=self.state._replace(common=()))


class Prepared(NamedTuple):
    """The prepared parameters of one layer, or of the layers of one turn along a leading axis."""

    position: Params


class Common(NamedTuple):
    """What all layers of a turn share.

    Attributes:
      position: The parameters of the encoding, or None if each layer has its own.
      state: The part of the mixer's state that all layers share; see `State.common`.
    """

    position: Position | None
    state: Any = ()


class DecoderLayer(nn.Module):
    """A decoder layer: `x + mixer(norm(x))`, then `x + mlp(norm(x))`.

    With `keep`, the layer also returns what decoding needs of the tokens. A dropout rate above 0
    requires an rng stream named "dropout".
    """

    spec: LayerSpec
    mixer: Mixer
    keep: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, reading: Reading, common: Common, past: Past | Prepared | None
    ) -> tuple[jax.Array, Kept | None]:
        spec, size = self.spec, self.spec.size
        if common.position is not None:
            position = common.position
        elif past is not None:
            position = Position(past.position, None)
        else:
            own = init_position(self, spec.encoding)
            position = prepare_position(
                *(spec.encoding, own, spec.attention, x_BTD.shape[1]), spec.context_length
            )

        x_BTD = constrain(x_BTD, spec.activation_sharding)
        y_BTD = LayerNorm(name="attention_norm")(x_BTD)
        if isinstance(past, Past):
            state = past.state._replace(common=common.state)
            y_BTD, mixed = self.mixer.step(self, spec, y_BTD, reading, position, state)
        else:
            y_BTD, mixed = self.mixer(self, spec, y_BTD, reading, position)
        x_BTD = x_BTD + self._dropped(y_BTD)

        y_BTD = LayerNorm(name="mlp_norm")(x_BTD)
        mlp_in = Linear((size.mlp_size,), size.init_std, name="mlp_in")
        mlp_out = Linear((size.hidden_size,), spec.residual_std, name="mlp_out")
        x_BTD = x_BTD + self._dropped(mlp_out(gelu(mlp_in(y_BTD))))
        kept = None
        if self.keep:
            kept = Kept(mixed, position.params if common.position is None else {})
        return constrain(x_BTD, spec.activation_sharding), kept

    def _dropped(self, x_BTD: jax.Array) -> jax.Array:
        return drop(x_BTD, self.dropout, self.make_rng(DROPOUT)) if self.dropout else x_BTD


class LayerGroup(nn.Module):
    """A group of layers, one for each turn, which are applied in order."""

    turns: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        reading: Reading,
        common: tuple[Common, ...],
        past: tuple[Past | Prepared | None, ...],
    ) -> tuple[jax.Array, tuple[Kept | None, ...]]:
        kept = []
        for index, layer in enumerate(self.turns):
            one = layer(name=f"block_{index}")
            x_BTD, of_layer = one(x_BTD, reading, common[index], past[index])
            kept.append(of_layer)
        return x_BTD, tuple(kept)
