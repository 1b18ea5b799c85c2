"""The interface of mixers: what stands between a layer's norm and its residual.

A mixer is a frozen dataclass of hyperparameters. It creates its parameters in the layer that calls
it, so it can read the output of `Linear(shape, std, name="query")(y_BTD)`, for example. Whatever
decoding needs of earlier tokens is a `State`, which is opaque to `fire_lm.generation`.

Shapes: B batch, T tokens, K continuations of a prompt, D model, L layers of a turn, C context.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from fire_lm import sharding
from fire_lm.attention import Implementation, Mask
from fire_lm.models.layer_position import Position
from fire_lm.models.segments import keys_seen
from fire_lm.models.sizes import ModelSize
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.log_n import LogN

# The collection of values that depend on the input, float32 scalars by name, which the metrics of
# training contain: a mixer writes them with `layer.sow` if the collection is mutable.
DIAGNOSTICS = "diagnostics"


class Reading(NamedTuple):
    """The tokens in one call of the decoder.

    Attributes:
      pos_BT: The positions of the tokens, `[B or 1, T]`.
      segment_BT: The document of each token, or None if each row is one document.
      seen_BT: The index of each token in its document, counted from 1, or None if it follows from
        `segment_BT`.
      lengths_B: The number of tokens of each prompt before the padding, or None if the call does
        not process prompts for decoding.
      generated: The number of tokens generated before those of a decoding step, or None.
    """

    pos_BT: jax.Array
    segment_BT: jax.Array | None = None
    seen_BT: jax.Array | None = None
    lengths_B: jax.Array | None = None
    generated: jax.Array | None = None

    def place(self, length: int) -> jax.Array:
        """Return the index of each of `length` tokens in its document, from 0, `[B or 1, T]`."""
        if self.seen_BT is not None:
            return self.seen_BT - 1
        return keys_seen(length, self.segment_BT) - 1

    def last(self, x_BT: jax.Array) -> jax.Array:
        """Return the value `[B, ...]` at the last token of each prompt, of `x_BT` `[B, T, ...]`."""
        if self.lengths_B is None:
            return x_BT[:, -1]
        last_B1 = (self.lengths_B - 1).reshape(-1, *[1] * (x_BT.ndim - 1))
        return jnp.take_along_axis(x_BT, last_B1, axis=1)[:, 0]


class Prompts(NamedTuple):
    """The prompts that decoding starts from.

    Attributes:
      lengths_B: The number of tokens of each prompt, int32.
      pos_C: The positions of a prompt followed by its continuation.
      new_tokens: The number of tokens to generate.
      continuations: K, the number of continuations of each prompt.
    """

    lengths_B: jax.Array
    pos_C: jax.Array
    new_tokens: int
    continuations: int


class State(NamedTuple):
    """What the layers of one turn remember while decoding, as trees of arrays.

    Layers only read the state. What a new token adds is written once for all layers, after the last
    layer, because a state that is carried through a loop over layers would be copied.

    Attributes:
      prompt: Arrays `[L, B, ...]` that all continuations of a prompt share and nothing changes.
      own: Arrays `[L, B, K, ...]` of each continuation.
      common: Arrays `[B, ...]` that all layers and continuations share, such as positions.
    """

    prompt: Any = ()
    own: Any = ()
    common: Any = ()

    def size_in_bytes(self, mesh: Mesh | AbstractMesh | None = None) -> int:
        """Return the size on one device of the arrays that each layer has of its own."""
        arrays = jax.tree_util.tree_leaves_with_path(self._replace(common=()))
        shapes = (sharding.shape_of_state(path, x.shape, mesh) for path, x in arrays)
        pairs = zip(shapes, arrays, strict=True)
        return sum(math.prod(shape) * x.dtype.itemsize for shape, (_, x) in pairs)


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """What a mixer knows about its layer before the program runs.

    Attributes:
      size: The shape of the decoder.
      encoding: The positional encoding.
      mask: Which tokens a token sees.
      log_n: The scaling of attention by log n, or None.
      attention: The requested implementation of attention.
      consecutive: Whether positions have no gaps; see `attention.Layout`.
      activation_sharding: The sharding of the activations `[B, T, D]`, or None.
      context_length: The length of the complete input; None means that each call receives it.
      attention_dropout: The dropout rate of attention weights.
    """

    size: ModelSize
    encoding: PositionalEncoding
    mask: Mask
    log_n: LogN | None
    attention: Implementation
    consecutive: bool
    activation_sharding: NamedSharding | None = None
    context_length: int | None = None
    attention_dropout: float = 0.0

    @property
    def residual_std(self) -> float:
        """The standard deviation of initial weights that add to the residual stream."""
        return self.size.init_std / math.sqrt(2 * self.size.num_layers)


@dataclasses.dataclass(frozen=True)
class Mixer:
    """What stands between a layer's norm and its residual.

    Subclasses implement `__call__` and `step`, and, unless what they remember of a text is one tree
    of arrays of constant size, `start` and `append`. `layer` is the Linen module that calls the
    mixer, for `layer.param`. Parameters other than those of `Attention` have names that begin with
    "mixer", which fire_lm/sharding.py replicates.
    """

    # Fields that may change after training, because trained parameters do not depend on them.
    evaluation_fields: ClassVar[tuple[str, ...]] = ()
    # The options of `Layers` that the mixer follows, with "encoding" if it applies the hooks of the
    # encoding to queries, keys and logits, "attention_dropout", "bidirectional" if it can read
    # tokens in both directions, and "sequence" if it is fast where a mesh splits rows; others are
    # refused.
    options: ClassVar[tuple[str, ...]] = ()

    def __call__(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BTD: jax.Array,
        reading: Reading,
        position: Position,
    ) -> tuple[jax.Array, Any]:
        """Mix complete texts, or prompts for decoding.

        Args:
          layer: The module that owns the parameters.
          spec: Static facts about the layer.
          y_BTD: The normed input.
          reading: The positions and documents of the tokens.
          position: The parameters of the encoding in this layer.

        Returns:
          The output `[B, T, D]`, and what decoding needs of the prompts (whose lengths are
          `reading.lengths_B`), as a tree of arrays `[B, ...]`.
        """
        raise NotImplementedError

    def step(
        self,
        layer: nn.Module,
        spec: LayerSpec,
        y_BKD: jax.Array,
        reading: Reading,
        position: Position,
        state: State,
    ) -> tuple[jax.Array, Any]:
        """Mix one new token of each continuation into one layer's `state`, without the L axes.

        Returns:
          The output `[B, K, D]`, and what the tokens add to the state, as a tree `[B, K, ...]`.
        """
        raise NotImplementedError

    def keys_per_token(self, mask: Mask, length: int, head_dim: int) -> float:
        """Return the number of keys per token that the FLOPs convention counts in a row.

        The convention ignores that tokens near the start of the row see fewer keys. A product with
        a state counts as attention to as many keys as take the same FLOPs.
        """
        return 0

    def attention_mask(self, mask: Mask) -> Mask | None:
        """Return the mask of the softmax attention with the layer's bias, or None if there is none.

        `mask` is that of the layer.
        """
        return None

    def cuts_rows(self, length: int) -> bool:
        """Return whether attention treats parts of a row of `length` tokens as documents."""
        return False

    def learned_scalars(self, params: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return the float32 scalars that the mixer of a layer learns, keyed by their names.

        `params` are the parameters of the layer.
        """
        return {}

    def start(self, kept: Any, prompts: Prompts, mask: Mask) -> State:
        """Return the state after the prompts, from the trees that `__call__` returned, `[L, ...]`.

        By default, each continuation gets a copy of the tree.
        """

        def copied(x_LB: jax.Array) -> jax.Array:
            return jnp.repeat(x_LB[:, :, None], prompts.continuations, axis=2)

        return State(own=jax.tree.map(copied, kept))

    def append(self, state: State, new: Any, reading: Reading) -> State:
        """Return the state with what `step` added, a tree `[L, B, K, ...]`.

        By default, `new` replaces what continuations have of their own.
        """
        return state._replace(own=new)

    def reorder(self, state: State, parent_BK: jax.Array) -> State:
        """Return the state in which each continuation continues its parent in the same example."""

        def taken(x_LBK: jax.Array) -> jax.Array:
            index = parent_BK.reshape(1, *parent_BK.shape, *[1] * (x_LBK.ndim - 3))
            return jnp.take_along_axis(x_LBK, index, axis=2)

        return state._replace(own=jax.tree.map(taken, state.own))
