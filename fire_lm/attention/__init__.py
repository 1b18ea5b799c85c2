"""Attention: one function, several implementations. Knows no encoding: bias is a function."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax

from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.dense import BiasFn, dense_attention
from fire_lm.errors import UserError

Implementation = Literal["auto", "dense", "blockwise"]

# Up to this many keys `auto` is dense. A CPU is quicker with blocks as soon as there are two (five
# times at 256 keys: they stay in its caches); elsewhere they are for the memory of the logits.
LONGEST_DENSE = {"cpu": 64}
LONGEST_DENSE_ELSEWHERE = 1024


def choose_implementation(requested: Implementation, num_keys: int) -> Implementation:
    """What `attend` will run for `num_keys` keys on JAX's default backend."""
    if requested not in get_args(Implementation):
        known = ", ".join(get_args(Implementation))
        raise UserError(f"attention implementation '{requested}' is not one of {known}")
    if requested == "auto":
        longest = LONGEST_DENSE.get(jax.default_backend(), LONGEST_DENSE_ELSEWHERE)
        return "dense" if num_keys <= longest else "blockwise"
    return requested


def attend(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    *,
    q_pos_BT: jax.Array,
    k_pos_BS: jax.Array,
    bias: BiasFn,
    logit_scale_BT: jax.Array | None = None,
    q_segment_BT: jax.Array | None = None,
    k_segment_BS: jax.Array | None = None,
    in_order: bool = False,
    implementation: Implementation = "auto",
) -> jax.Array:
    """Causal softmax attention, `[B, T, N, H]` in q's dtype.

    Args:
      q_BTNH, k_BSNH, v_BSNH: queries, keys, values.
      q_pos_BT, k_pos_BS: positions; their batch axis is 1 where the batch shares them.
      bias: function of positions giving `[B, N, T, S]` float32, or None, for any block of them.
      logit_scale_BT: factor on q·k, or None.
      q_segment_BT, k_segment_BS: int32, which document a token is of; a query sees the keys of its
        own. Both or neither.
      in_order: queries and keys are the same tokens, and none sees a key behind it in the array,
        so that implementations may leave those out.
      implementation: see `choose_implementation`.
    """
    if (q_segment_BT is None) != (k_segment_BS is None):
        raise UserError("attend needs segments of both queries and keys, or of neither")
    inputs: dict[str, Any] = {
        "q_pos_BT": q_pos_BT,
        "k_pos_BS": k_pos_BS,
        "bias": bias,
        "logit_scale_BT": logit_scale_BT,
        "q_segment_BT": q_segment_BT,
        "k_segment_BS": k_segment_BS,
    }
    if choose_implementation(implementation, k_BSNH.shape[1]) == "dense":
        return dense_attention(q_BTNH, k_BSNH, v_BSNH, **inputs)
    return blockwise_attention(q_BTNH, k_BSNH, v_BSNH, **inputs, in_order=in_order)


__all__ = ["BiasFn", "Implementation", "attend", "choose_implementation"]
