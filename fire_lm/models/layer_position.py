"""The part of an encoding in a layer: its parameters, their prepared form, attention.

Queries and keys stand at positions of their own, so that a few queries can meet many older keys.

Shapes: B batch, T queries, S keys, N heads, H head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax

from fire_lm.attention import BiasFn, CommonBias, Implementation, choose_implementation
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.log_n import LogN, Scales


class Position(NamedTuple):
    """The encoding as a layer uses it.

    Attributes:
      params: prepared.
      tables: of its bias, where the attention kernel takes them.
    """

    params: Params
    tables: CommonBias | None


# For each of the encodings that take turns, what its layers share; None: each has its own.
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
    """All that positions do to a layer's attention: (q, k, factors, bias), for `attend`.

    Args:
      seen_BT: how many keys each query sees, int32 `[B or 1, T]`; read by `log_n` alone.
      context_length: tokens of the whole input, including those still to be generated.
    """
    q_BTNH, k_BSNH = encoding.rotate(params, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length)
    logit_scale_BT = encoding.logit_scale(params, q_pos_BT)
    scales = Scales(logit_scale_BT, None)
    if log_n is not None:
        assert seen_BT is not None
        scales = log_n.scales(logit_scale_BT, seen_BT, encoding.train_length)

    def bias(q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
        return encoding.bias(params, q_pos_BT, k_pos_BS, context_length)

    return q_BTNH, k_BSNH, scales, bias


def prepare_position(
    encoding: PositionalEncoding, params: Params, attention: Implementation, length: int
) -> Position:
    """Prepare an encoding for inputs of `length` tokens."""
    params = encoding.prepare(params)
    tables = None
    if choose_implementation(attention, length) == "tpu":
        tables = encoding.common_bias(params, length, length)
    return Position(params, tables)


def init_position(
    module: nn.Module, encoding: PositionalEncoding, name: str = "position"
) -> Params:
    """The encoding's parameters as one tree under `module`'s `name`; {} if it has none."""
    if not has_parameters(encoding):
        return {}  # Linen would keep an empty entry, which a checkpoint does not.
    return module.param(name, encoding.init)


def has_parameters(encoding: PositionalEncoding) -> bool:
    return bool(jax.eval_shape(encoding.init, jax.random.key(0)))


def position_name(turn: int) -> str:
    """The name of the parameters that all layers of an encoding share."""
    return f"position_{turn}" if turn else "position"
