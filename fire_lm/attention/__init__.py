"""Causal attention: the function `attend` and its interchangeable implementations.

This package does not depend on any particular encoding: it receives the bias as a function of
positions.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.common_bias import CommonBias, TabulatedBias
from fire_lm.attention.dense import BiasFn, attention_logits, dense_attention
from fire_lm.errors import UserError
from fire_lm.hardware.absent_tpu import skip_absent_tpu

Implementation = Literal["auto", "dense", "blockwise", "tpu"]

# The largest number of keys for which `auto` chooses `dense`. On a CPU, blockwise attention is
# faster from two blocks on (five times as fast at 256 keys), because each block fits into the CPU's
# caches. The TPU kernels process 128 keys at a time. On other backends, blocks only save the memory
# that all logits would need.
LONGEST_DENSE = {"cpu": 64, "tpu": 127}
LONGEST_DENSE_ELSEWHERE = 1024


skip_absent_tpu()  # In a notebook, nothing else does this before JAX starts.

_backend: contextvars.ContextVar[str | None] = contextvars.ContextVar("backend", default=None)


@contextlib.contextmanager
def compiling_for(backend: str) -> Iterator[None]:
    """Make `attend` choose implementations for `backend` (such as "tpu") in the enclosed code.

    This overrides JAX's default backend, for example to compile for a TPU on a machine without one.
    """
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def choose_implementation(requested: Implementation, num_keys: int) -> Implementation:
    """Return the implementation that `attend` uses for `num_keys` keys.

    For "auto", the choice depends on the backend, which is set by `compiling_for` or is JAX's
    default. If it is "tpu" but the kernels cannot handle the inputs, `attend` uses "blockwise"
    instead.

    Raises:
      UserError: The implementation is unknown, or cannot run on the backend.
    """
    if requested not in get_args(Implementation):
        known = ", ".join(get_args(Implementation))
        raise UserError(f"unknown attention implementation '{requested}': use one of {known}")
    backend = _backend.get() or jax.default_backend()
    if requested == "tpu" and backend not in ("tpu", "cpu"):
        raise UserError(
            "attention implementation 'tpu' needs a TPU (or a CPU, which interprets the kernel): "
            "choose 'auto' or 'blockwise'"
        )
    if requested == "auto":
        if num_keys <= LONGEST_DENSE.get(backend, LONGEST_DENSE_ELSEWHERE):
            return "dense"
        return "tpu" if backend == "tpu" else "blockwise"
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
    bias_scale_BT: jax.Array | None = None,
    q_segment_BT: jax.Array | None = None,
    k_segment_BS: jax.Array | None = None,
    in_order: bool = False,
    consecutive: bool = False,
    sharding: NamedSharding | None = None,
    implementation: Implementation = "auto",
) -> jax.Array:
    """Return causal softmax attention, `[B, T, N, H]` in q's dtype.

    Args:
      q_BTNH, k_BSNH, v_BSNH: The queries, keys and values.
      q_pos_BT, k_pos_BS: The positions of the queries and keys. The batch axis may have size 1 if
        all sequences share the positions.
      bias: A function that returns the bias `[B, N, T, S]` in float32 for any block of query and
        key positions, or returns None if there is no bias. The "tpu" implementation needs a bias
        with tables: a `TabulatedBias` or a `CommonBias`.
      logit_scale_BT: The factor on q·k for each query, or None.
      bias_scale_BT: The factor on the bias for each query, or None.
      q_segment_BT, k_segment_BS: The document that each token belongs to, int32; a query attends
        only to keys of its own document. Pass both arguments or neither.
      in_order: Whether queries and keys are the same tokens, with positions that increase along the
        array within each segment (padding counts as a segment). Implementations may then skip the
        keys that come after a query in the array. "tpu" is fast if the tokens of each segment are
        contiguous.
      consecutive: Whether positions are 0, 1, 2, ... or, with segments, whether the positions of
        each segment increase by one per token and are below T. "tpu" requires this if there is a
        bias, and returns NaN if it does not hold.
      sharding: The sharding of `q_BTNH` if it is split over a mesh. Only "tpu" needs this argument.
      implementation: The requested implementation; see `choose_implementation`.

    Raises:
      UserError: The arguments are invalid, or the requested "tpu" implementation does not support
        them.
    """
    check_inputs(q_BTNH, k_BSNH, v_BSNH, in_order)
    if (q_segment_BT is None) != (k_segment_BS is None):
        raise UserError("attend: pass both q_segment_BT and k_segment_BS, or neither")
    inputs: dict[str, Any] = {
        "q_pos_BT": q_pos_BT,
        "k_pos_BS": k_pos_BS,
        "bias": bias,
        "logit_scale_BT": logit_scale_BT,
        "bias_scale_BT": bias_scale_BT,
        "q_segment_BT": q_segment_BT,
        "k_segment_BS": k_segment_BS,
    }
    check_rows(inputs, {"T": q_BTNH.shape[1], "S": k_BSNH.shape[1]})
    chosen = choose_implementation(implementation, k_BSNH.shape[1])
    if chosen == "dense":
        return dense_attention(q_BTNH, k_BSNH, v_BSNH, **inputs)
    if chosen == "tpu":
        from fire_lm.attention.tpu import dispatch  # Pallas takes a while to import.

        obstacle = dispatch.obstacle(q_BTNH, q_pos_BT, bias, in_order, consecutive)
        if obstacle is None:
            return dispatch.attend_on_tpu(
                *(q_BTNH, k_BSNH, v_BSNH),
                pos_BT=q_pos_BT,
                bias=bias,
                logit_scale_BT=logit_scale_BT,
                bias_scale_BT=bias_scale_BT,
                segment_BT=q_segment_BT,
                sharding=sharding,
            )
        if implementation == "tpu":
            raise UserError(
                f"attention implementation 'tpu' {obstacle}: choose 'auto' or 'blockwise'"
            )
        announce(f"using 'blockwise' attention, because the TPU kernel {obstacle}")
    return blockwise_attention(q_BTNH, k_BSNH, v_BSNH, **inputs, in_order=in_order)


@functools.cache
def announce(text: str) -> None:
    """Log `text` as a warning, unless the same text was logged before."""
    logging.getLogger(__name__).warning(text)


def check_rows(inputs: dict[str, Any], lengths: dict[str, int]) -> None:
    """Raise UserError if the length of an input differs from that of the axis in its name."""
    for name, x in inputs.items():
        if name != "bias" and x is not None and x.shape[1:] != (lengths[name[-1]],):
            must = f"[B or 1, {lengths[name[-1]]}]"
            raise UserError(f"attend: {name} has shape {x.shape}: it must be {must}")


def check_inputs(q_BTNH: jax.Array, k_BSNH: jax.Array, v_BSNH: jax.Array, in_order: bool) -> None:
    """Raise UserError for shapes and dtypes that no implementation supports."""
    shapes = [x.shape for x in (q_BTNH, k_BSNH, v_BSNH)]
    if any(len(shape) != 4 or 0 in shape for shape in shapes):
        raise UserError(
            f"attend: q, k and v must have four non-empty axes [B, T, N, H], but are {shapes}"
        )
    if k_BSNH.shape != v_BSNH.shape or q_BTNH.shape[2:] != k_BSNH.shape[2:]:
        raise UserError(
            f"attend: k and v must have the same shape, with q's N and H, but q, k, v are {shapes}"
        )
    if in_order and q_BTNH.shape[1] != k_BSNH.shape[1]:
        raise UserError(
            "attend: in_order=True means that queries and keys are the same tokens, but there are "
            f"{q_BTNH.shape[1]} queries and {k_BSNH.shape[1]} keys"
        )
    dtypes = {x.dtype for x in (q_BTNH, k_BSNH, v_BSNH)}
    if len(dtypes) > 1 or not jnp.issubdtype(q_BTNH.dtype, jnp.floating):
        raise UserError(
            "attend: q, k and v must have the same floating-point dtype, not "
            f"{' and '.join(sorted(map(str, dtypes)))}"
        )


__all__ = [
    "BiasFn",
    "CommonBias",
    "Implementation",
    "TabulatedBias",
    "announce",
    "attend",
    "attention_logits",
    "choose_implementation",
]
