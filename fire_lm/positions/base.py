"""The interface that all positional encodings implement.

An encoding is a frozen dataclass of hyperparameters whose hooks are pure functions of a parameter
tree and of explicit positions. Outside `interop`, no code checks which encoding is in use.
Encodings are not Linen modules and take their parameters as an argument, because attention calls
`bias` inside `lax.map`, `jax.checkpoint` and kernels, where a bound module cannot be used.

Shapes: B batch (1 if the batch shares its positions), T queries, S keys, N heads, H head dim, D
model. Positions are int32 (or float32 if resampled); arithmetic on positions is int32 or float32,
because bfloat16 cannot distinguish 257 from 256.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.common_bias import CommonBias, of_slab
from fire_lm.errors import UserError

Params = dict[str, Any]

# The methods through which an encoding acts.
HOOKS = ("embed", "rotate", "bias", "logit_scale", "log_decay", "mix")


@dataclasses.dataclass(frozen=True)
class PositionalEncoding:
    """A positional encoding, defined by hooks through which positions enter a transformer.

    By default, no hook has an effect. Concrete encodings are final: subclass this class, never
    another encoding.

    Attributes:
      num_heads: N, the number of attention heads.
      head_dim: H, the width of one head.
      train_length: The training sequence length in tokens; for a run that continues another run,
        the length of the first run. Only encodings that are defined relative to this length use it
        (FIRE's threshold, position interpolation).
      hidden_size: D, the width of the embeddings.
    """

    # Fields that a sweep may change after training, because trained parameters do not depend on
    # these fields.
    evaluation_fields: ClassVar[tuple[str, ...]] = ()
    # Fields whose value None means a value derived from `train_length`. A run that continues at
    # another length keeps both the derived values and `train_length` as they were.
    length_fields: ClassVar[tuple[str, ...]] = ()

    num_heads: int
    head_dim: int
    train_length: int
    hidden_size: int

    @property
    def model_shape(self) -> dict[str, int]:
        """The arguments from which another encoding of the same model is built."""
        fields = dataclasses.fields(PositionalEncoding)
        return {field.name: getattr(self, field.name) for field in fields}

    @property
    def translation_invariant(self) -> bool:
        """Whether attention depends only on differences of positions; a property test checks this.

        An encoding that never is declares `translation_invariant = False` in its class.
        """
        return True

    @property
    def integer_positions(self) -> bool:
        """Whether the encoding is undefined between two integer positions (a table, buckets)."""
        return False

    @property
    def constant_init(self) -> bool:
        """Whether the parameters deliberately start from the same values in every layer."""
        return False

    @property
    def bias_window(self) -> int | None:
        """The distance from which the bias is constant, or None if no such distance is declared.

        A property test checks the declared value. Without it, the test requires that neighbouring
        distances have different biases, unless `integer_positions` is set.
        """
        return None

    @property
    def uses_context_length(self) -> bool:
        """Whether the result of a hook depends on `context_length`.

        If so, decoding uses one length throughout a call, because keys cached for another length
        would be wrong.
        """
        return False

    @property
    def stretches(self) -> bool:
        """Whether attention depends on `context_length`, if it exceeds the training length.

        By default, this is so if a hook depends on it.
        """
        return self.uses_context_length

    def acts_through(self, hook: str) -> bool:
        """Return whether the hook of this name, such as "bias", may have an effect."""
        return getattr(type(self), hook) is not getattr(PositionalEncoding, hook)

    @property
    def title(self) -> str:
        """The name of the encoding in descriptions and messages."""
        return type(self).__name__

    @property
    def parts(self) -> dict[str, PositionalEncoding]:
        """The encodings that this one combines, by the names of their parameters; often none."""
        return {}

    @property
    def uses_positions(self) -> bool:
        """Whether the values of positions matter, and not only the order of the tokens."""
        return any(map(self.acts_through, ("embed", "rotate", "bias", "logit_scale")))

    def interpolated(self) -> PositionalEncoding | None:
        """Return this encoding with position interpolation and the same parameters, or None.

        The positions of an input longer than the training length are divided by the ratio of the
        two lengths; shorter inputs are unchanged. Sources: Chen et al. (2023) for RoPE, 2310.13017
        for ALiBi. The result is None if the encoding has no such form or already adapts to
        long inputs.
        """
        return None

    @property
    def causal_form(self) -> PositionalEncoding:
        """The encoding whose `bidirectional` form this is; by default, the encoding itself."""
        return self

    def bidirectional(self) -> PositionalEncoding:
        """Return this encoding's form for encoders, whose tokens also see later tokens.

        By default, it is the encoding itself: rotations, embeddings and functions of |i - j| need
        no other form. Parameters may differ in shape.

        Raises:
          UserError: The encoding is defined for earlier keys only.
        """
        if self.acts_through("log_decay"):
            raise UserError(
                f"{type(self).__name__} has forget gates, which are defined between a token and "
                "earlier ones: choose another encoding for an encoder"
            )
        return self

    def periods(self) -> np.ndarray | None:
        """Return the number of positions in which each pair of rotated dims makes a full turn.

        The periods are those at the training length, in increasing order, float64 `[d/2]`. The
        result is None if the encoding reports no periods, for example because it has no rotation.
        """
        return None

    def check_length(self, length: int, context_length: int) -> None:
        """Raise UserError if an input of `context_length` tokens cannot be encoded.

        The positions of the input are below `length`, which exceeds `context_length` if the
        positions are resampled.
        """

    def init(self, rng: jax.Array) -> Params:
        """Initialise the encoding's trainable parameters in float32; {} if there are none."""
        return {}

    def prepare(self, params: Params) -> Params:
        """Return the parameters with precomputed values that the other hooks derive from them.

        In each step, this hook runs once per layer, or once for all layers that share the
        parameters. The other hooks accept both the original and the prepared parameters.
        """
        return params

    def diagnostics(self, params: Params) -> dict[str, jax.Array]:
        """Return float32 scalars of a layer to monitor; training logs their maxima over layers."""
        return {}

    def explain_nan(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return the reason why the TPU kernel's output is NaN, and the remedy, as one message.

        The result is None if the `diagnostics` do not indicate that this encoding is the cause.
        """
        return None

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        """Return the float32 scalars that a layer learns, keyed by their names in the paper."""
        return {}

    def embed(self, params: Params, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        """Return the transformed token embeddings `[B, T, D]`, for absolute encodings.

        All layers share one embedding, so an encoding whose `embed` has parameters requires
        `build_decoder.share_position = True` in the gin file.
        """
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
        """Return the transformed queries and keys in their dtypes, for rotary encodings.

        Queries and keys may become wider than values (as in PoPE). Attention divides q·k by the
        square root of their new width. `context_length` is the length of the complete input in
        tokens.
        """
        return q_BTNH, k_BSNH

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array | None:
        """Return the bias to add to q·k/sqrt(H), `[B or 1, N, T, S]` float32, or None for no bias.

        Attention masks the entries of keys after the query, but these entries must also be finite.
        """
        return None

    def common_bias(
        self, params: Params, num_positions: int, context_length: int
    ) -> CommonBias | None:
        """Return the bias in the form of tables for the attention kernels, or None.

        The result is None if there is no bias, or if the bias does not have this form. Every bias
        that depends only on the distance has this form. The tables are valid for positions
        0 .. `num_positions` - 1.
        """
        if not self.translation_invariant or not self.acts_through("bias"):
            return None
        k_pos_BP = (num_positions - 1 - jnp.arange(num_positions))[None]
        bias_BNTP = self.bias(params, k_pos_BP[:, :1], k_pos_BP, context_length)
        assert bias_BNTP is not None
        return of_slab(bias_BNTP[0, :, 0])

    def logit_scale(self, params: Params, q_pos_BT: jax.Array) -> jax.Array | None:
        """Return a float32 factor `[B, T]` that multiplies q·k but not the bias, or None for 1.

        All heads share the factor. It depends on positions, which may be drawn at random, not on
        the number of keys that a query sees (`log_n.LogN` uses that number).
        """
        return None

    def log_decay(self, params: Params, y_BTD: jax.Array) -> jax.Array | None:
        """Return the logarithm of each token's forget gate, float32 `[B, T, N]` <= 0, or None.

        The gates of a document are accumulated: the logit of a query and an earlier key of its
        document contains the sum over the tokens after the key, up to and including the query. The
        gates follow from the layer's normed input y, in the dtype of activations, not from
        positions, so nothing that changes positions changes them.
        """
        return None

    def mix(
        self, params: Params, products_BNTS: jax.Array, bias_BNTS: jax.Array | None
    ) -> jax.Array:
        """Return the logits `[B, N, T, S]` from scaled q·k and the bias, by default their sum.

        The result for a query and a key may depend on these terms of all heads, but not on those of
        another query or key. Forget gates and the mask are applied afterwards. The TPU kernel
        cannot mix heads. All arrays are float32; the bias has a batch axis of size 1 if all
        sequences share it, and None means no bias.
        """
        return products_BNTS if bias_BNTS is None else products_BNTS + bias_BNTS


def distance(q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    """Return `|i - j|` for every query and key, `[B, T, S]`, exact in the dtype of the positions.

    Attention masks the keys after the query. The absolute value keeps functions of the distance
    (logarithms, powers) finite for these keys.
    """
    return jnp.abs(q_pos_BT[:, :, None] - k_pos_BS[:, None, :])
