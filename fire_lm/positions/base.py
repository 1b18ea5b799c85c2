"""The one interface of all positional encodings.

An encoding is a frozen dataclass of hyperparameters whose hooks are pure functions of a parameter
tree and of explicit positions. Nothing else in fire_lm asks which encoding it holds. The methods
are functional (parameters come in as an argument) rather than a Linen module, because attention
calls `bias` inside `lax.map`, `jax.checkpoint` and kernels, where a bound module may not be used.

Shapes: B batch (1 where positions are shared by the batch), T queries, S keys, N heads, H head
dim, D model. Positions are int32 (float32 where resampled); all their maths is float32, because
bfloat16 cannot tell 257 from 256.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.common_bias import CommonBias, of_slab

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class PositionalEncoding:
    """The places where a position can enter a transformer; every hook defaults to "not at all".

    Concrete encodings are final: subclass this class, never another encoding.

    Attributes:
      num_heads: N, number of attention heads.
      head_dim: H, width of one head.
      train_length: training sequence length in tokens, of the first run where one continues
        another; encodings that are defined relative to it (FIRE's threshold, position
        interpolation) read it, the others ignore it.
      hidden_size: D, width of the embeddings.
    """

    # Whether attention sees positions by their differences alone (a property test holds it to it).
    translation_invariant: ClassVar[bool] = True
    # Whether positions between two integers mean nothing to it (a table, buckets).
    integer_positions: ClassVar[bool] = False
    # Whether its parameters start from the same values in every layer, on purpose.
    constant_init: ClassVar[bool] = False
    # Fields that a sweep may set otherwise than in training: no trained parameter depends on them.
    evaluation_fields: ClassVar[tuple[str, ...]] = ()
    # Fields that stand for a value derived from `train_length` where they are None. A run that goes
    # on at another length keeps them, and `train_length`, as they were.
    length_fields: ClassVar[tuple[str, ...]] = ()

    num_heads: int
    head_dim: int
    train_length: int
    hidden_size: int

    @property
    def bias_window(self) -> int | None:
        """The distance from which on the bias is one value; None where every distance has its own.

        A property test holds an encoding to it: in a window too, no two distances may be rounded
        into one.
        """
        return None

    @property
    def uses_context_length(self) -> bool:
        """Whether the result of a hook depends on `context_length`.

        Decoding then takes one length for the whole call, as keys of another are of no use.
        """
        return False

    def interpolated(self) -> PositionalEncoding | None:
        """This encoding with position interpolation, on the same parameters; None if it knows none.

        Inputs beyond the training length are squeezed into it, as much as each is longer; others
        are as they were. Source: Chen et al. (2023) for RoPE, 2310.13017 for ALiBi. None too where
        something changes long inputs already.
        """
        return None

    def periods(self) -> np.ndarray | None:
        """Positions in which each pair of rotated dims makes a full turn, at the training length.

        float64 `[d/2]`, shortest first; None for an encoding without rotation.
        """
        return None

    def check_length(self, length: int, context_length: int) -> None:
        """Raises UserError if an input of `context_length` tokens cannot be encoded.

        Its positions are below `length`, which is more than its tokens where they are resampled.
        """
        del length, context_length

    def init(self, rng: jax.Array) -> Params:
        """The encoding's own trainable parameters, float32; empty when it has none."""
        del rng
        return {}

    def prepare(self, params: Params) -> Params:
        """Compute once a step what the other hooks need of the parameters.

        Once a layer, or once for all layers that share the parameters. The other hooks take
        parameters in either form.
        """
        return params

    def diagnostics(self, params: Params) -> dict[str, jax.Array]:
        """Numbers of one layer to watch in training, float32 scalars; the largest counts."""
        del params
        return {}

    def explain_nan(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return why these `diagnostics` make the TPU kernel's output NaN, and the way out.

        None if they do not.
        """
        del diagnostics
        return None

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        """Numbers that a layer learns, float32 scalars by their names in the paper."""
        del params
        return {}

    def embed(self, params: Params, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """Changes token embeddings `x_BTD` (absolute encodings).

        There is one embedding, so with parameters of its own the gin file says
        `build_decoder.share_position = True`.
        """
        del params, pos_BT
        return x_BTD

    def rotate(
        self,
        params: Params,
        q_BTNH: jax.Array,
        k_BSNH: jax.Array,
        q_pos_BT: jax.Array,
        k_pos_BS: jax.Array,
        context_length: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Changes queries and keys (rotary encodings); keeps their dtypes.

        `context_length` is the length of the whole input in tokens.
        """
        del params, q_pos_BT, k_pos_BS, context_length
        return q_BTNH, k_BSNH

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array | None:
        """Additive bias `[B, N, T, S]` float32, added to q·k/sqrt(H); None for no bias.

        Entries with key after query are masked by attention, but must be finite.
        """
        del params, q_pos_BT, k_pos_BS, context_length
        return None

    def common_bias(
        self, params: Params, num_positions: int, context_length: int
    ) -> CommonBias | None:
        """The bias as tables for a kernel, or None if it has no such form (or there is no bias).

        For positions 0 .. `num_positions` - 1. Any bias that depends on the distance alone has it.
        """
        if not self.translation_invariant or type(self).bias is PositionalEncoding.bias:
            return None
        k_pos_BP = (num_positions - 1 - jnp.arange(num_positions))[None]
        bias_BNTP = self.bias(params, k_pos_BP[:, :1], k_pos_BP, context_length)
        assert bias_BNTP is not None
        return of_slab(bias_BNTP[0, :, 0])

    def logit_scale(self, params: Params, q_pos_BT: jax.Array) -> jax.Array | None:
        """Factor `[B, T]` float32 on q·k only, not on the bias; None for 1."""
        del params, q_pos_BT
        return None


def distance(q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    """`|i - j|` for every query and key, `[B, T, S]`, exact in the dtype of the positions.

    Attention masks the keys after the query; they get the mirrored value, so that the maths of
    distances (logarithms, powers) stays finite there.
    """
    return jnp.abs(q_pos_BT[:, :, None] - k_pos_BS[:, None, :])
