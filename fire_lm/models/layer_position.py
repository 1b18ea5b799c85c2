"""The use of an encoding in a layer: creating and preparing its parameters, and applying it.

Queries and keys have separate positions, so that a few queries can attend to many earlier keys.

Shapes: B batch, T queries, S keys, N heads, H head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax

from fire_lm.attention import BiasFn, CommonBias, Implementation, choose_implementation
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.contract import check_rotated, check_term
from fire_lm.positions.log_n import LogN, Scales


class Position(NamedTuple):
    """The parameters and tables of an encoding, prepared for use in a layer.

    Attributes:
      params: The prepared parameters.
      tables: The bias in the form of tables, or None if it has none or no kernel needs them.
    """

    params: Params
    tables: CommonBias | None


# For each alternating encoding, the `Position` that its layers share, or None if they share none.
Shared = tuple[Position | None, ...]


def positioned(
    encoding: PositionalEncoding,
    params: Params,
    log_n: LogN | None,
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    seen_BT: jax.Array | None,
    context_length: int,
) -> tuple[jax.Array, jax.Array, Scales, BiasFn]:
    """Return a layer's transformed queries and keys, and the scales and bias of its attention.

    Args:
      seen_BT: The number of keys that each query sees, int32 `[B or 1, T]`; used only by `log_n`.
      context_length: The number of tokens in the complete input, including tokens that are still to
        be generated.

    Returns:
      The queries, the keys, the scales of each query, and the bias function, as `attend` needs
      them.
    """
    rotated = encoding.rotate(params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length)
    check_rotated(encoding, rotated, q_BTNH, k_BSNH)
    logit_scale_BT = encoding.logit_scale(params, q_pos_BT)
    check_term(encoding, "logit_scale", logit_scale_BT, *q_pos_BT.shape)
    scales = Scales(logit_scale_BT, None)
    if log_n is not None:
        assert seen_BT is not None
        scales = log_n.scales(logit_scale_BT, seen_BT, encoding.train_length)

    def bias(q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
        bias_BNTS = encoding.bias(params, q_pos_BT, k_pos_BS, context_length)
        (q_batch, queries), (k_batch, keys) = q_pos_BT.shape, k_pos_BS.shape
        check_term(
            encoding, "bias", bias_BNTS, max(q_batch, k_batch), encoding.num_heads, queries, keys
        )
        return bias_BNTS

    return *rotated, scales, bias


def log_decay(encoding: PositionalEncoding, params: Params, y_BTD: jax.Array) -> jax.Array | None:
    """Return the encoding's log forget gates `[B, T, N]`, or None; see its hook."""
    log_decay_BTN = encoding.log_decay(params, y_BTD)
    check_term(encoding, "log_decay", log_decay_BTN, *y_BTD.shape[:2], encoding.num_heads)
    return log_decay_BTN


def prepare_position(
    encoding: PositionalEncoding,
    params: Params,
    attention: Implementation,
    length: int,
    context_length: int | None,
) -> Position:
    """Return the prepared parameters and tables of an encoding for inputs of `length` tokens.

    `context_length` is the number of tokens in the complete input; None means `length`.
    """
    params = encoding.prepare(params)
    tables = None
    if choose_implementation(attention, length) == "tpu":
        context = length if context_length is None else context_length
        tables = encoding.common_bias(params, length, context)
    return Position(params, tables)


def init_position(
    module: nn.Module, encoding: PositionalEncoding, name: str = "position"
) -> Params:
    """Create the encoding's parameters as one tree named `name` in `module`; {} if it has none."""
    if not has_parameters(encoding):
        return {}  # Linen would create an empty entry, which a checkpoint does not store.
    return module.param(name, encoding.init)


def has_parameters(encoding: PositionalEncoding) -> bool:
    return bool(jax.eval_shape(encoding.init, jax.random.key(0)))


def position_name(turn: int) -> str:
    """Return the name of the parameters that all layers with the encoding at index `turn` share."""
    return f"position_{turn}" if turn else "position"
