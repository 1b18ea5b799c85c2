"""Attention: the function `attend` and its interchangeable implementations.

This package does not depend on any particular encoding: it receives the bias as a function of
positions.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Iterator
from typing import get_args

import jax
import jax.numpy as jnp

from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.common_bias import CommonBias, TabulatedBias
from fire_lm.attention.dense import attention_logits, dense_attention
from fire_lm.attention.slices import Slices, attend_to_neighbours, attend_to_rows
from fire_lm.attention.terms import (
    ANY_ORDER,
    CAUSAL,
    NO_TERMS,
    BiasFn,
    Implementation,
    Layout,
    Mask,
    Terms,
    Tokens,
    seen,
)
from fire_lm.errors import UserError
from fire_lm.hardware.absent_tpu import skip_absent_tpu

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
    queries: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
    mask: Mask = CAUSAL,
    layout: Layout = ANY_ORDER,
) -> jax.Array:
    """Return softmax attention, `[B, T, N, H]` in q's dtype; see `dense_attention`.

    Args:
      q_BTNH, k_BSNH, v_BSNH: The queries, keys and values. Queries and keys may be wider than
        values ("tpu" supports 128 and 64); the output is as wide as the values.
      queries, keys: The positions and documents of the queries and of the keys.
      terms: The terms of the logits besides q·k.
      mask: Which keys of its document a query sees.
      layout: What is known about the arrays, and the requested implementation.

    Raises:
      UserError: The arguments are invalid, or the requested "tpu" implementation does not support
        them.
    """
    check_arrays(q_BTNH, k_BSNH, v_BSNH, layout.in_order)
    chosen = choose_implementation(layout.implementation, k_BSNH.shape[1])
    check_tokens(q_BTNH, k_BSNH, queries, keys, terms, mask)
    if layout.in_order:  # a window or chunk that contains all keys is none
        mask = mask.within(k_BSNH.shape[1])
    inputs = (q_BTNH, k_BSNH, v_BSNH, queries, keys, terms, mask)
    if slices := Slices.of(layout.sharding, q_BTNH.shape):
        return _attend_by_slice(chosen, slices, layout, *inputs)
    return _attend_whole(*inputs, layout)


def _attend_whole(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    queries: Tokens,
    keys: Tokens,
    terms: Terms,
    mask: Mask,
    layout: Layout,
) -> jax.Array:
    """Return `attend` to rows that are not split. The mask applies as it is."""
    inputs = (q_BTNH, k_BSNH, v_BSNH, queries, keys, terms, mask)
    chosen = choose_implementation(layout.implementation, k_BSNH.shape[1])
    if chosen == "dense":
        return dense_attention(*inputs)
    if chosen == "tpu":
        from fire_lm.attention.tpu import dispatch  # Pallas takes a while to import.

        obstacle = dispatch.obstacle(q_BTNH, v_BSNH, queries, terms, mask, layout)
        if obstacle is None:
            return dispatch.attend_on_tpu(
                q_BTNH, k_BSNH, v_BSNH, queries, terms, mask, layout.sharding
            )
        _fall_back(layout, obstacle)
    return blockwise_attention(*inputs, in_order=layout.in_order)


def _attend_by_slice(
    chosen: Implementation,
    slices: Slices,
    layout: Layout,
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    tokens: Tokens,
    keys: Tokens,
    terms: Terms,
    mask: Mask,
) -> jax.Array:
    """Return `attend` to rows that are split over a mesh."""
    del keys  # in_order: the same as the queries
    if not layout.in_order:
        raise UserError(
            "attend: rows are split over a mesh, which needs queries and keys that are the same "
            "tokens (in_order=True)"
        )
    inputs = (q_BTNH, k_BTNH, v_BTNH, tokens, terms, mask)
    if mask.reach is not None and mask.reach <= slices.tokens:
        return attend_to_neighbours(_attend_whole, slices, *inputs, layout)
    if chosen == "tpu":
        from fire_lm.attention.tpu import dispatch  # Pallas takes a while to import.

        obstacle = dispatch.obstacle(q_BTNH, v_BTNH, tokens, terms, mask, layout)
        if obstacle is None:
            return dispatch.attend_on_tpu(*inputs, layout.sharding)
        _fall_back(layout, obstacle)
    attention = dense_attention if chosen == "dense" else blockwise_attention
    return attend_to_rows(attention, slices, *inputs)


def _fall_back(layout: Layout, obstacle: str) -> None:
    """Announce that the TPU kernel cannot run, or raise UserError if it was asked for."""
    if layout.implementation == "tpu":
        raise UserError(f"attention implementation 'tpu' {obstacle}: choose 'auto' or 'blockwise'")
    announce(f"using 'blockwise' attention, because the TPU kernel {obstacle}")


@functools.cache
def announce(text: str) -> None:
    """Log `text` as a warning, unless the same text was logged before."""
    logging.getLogger(__name__).warning(text)


def check_tokens(
    q_BTNH: jax.Array, k_BSNH: jax.Array, queries: Tokens, keys: Tokens, terms: Terms, mask: Mask
) -> None:
    """Raise UserError if positions, documents or scales do not fit the queries and keys."""
    for name in ("segment", "decay"):
        if (getattr(queries, name) is None) != (getattr(keys, name) is None):
            raise UserError(f"attend: give {name}s to both queries and keys, or to neither")
    scales = Terms(logit_scale_BT=terms.logit_scale_BT, bias_scale_BT=terms.bias_scale_BT)
    for arrays, name, length in (
        (queries, "queries", q_BTNH.shape[1]),
        (keys, "keys", k_BSNH.shape[1]),
        (scales, "terms", q_BTNH.shape[1]),
    ):
        for path, x in jax.tree_util.tree_leaves_with_path(arrays):
            if x.shape[1:2] != (length,):
                raise UserError(
                    f"attend: {name}{jax.tree_util.keystr(path)} has shape {x.shape}: it must be "
                    f"[B or 1, {length}{', N' * (x.ndim > 2)}]"
                )
    for name, tokens in (("queries", queries), ("keys", keys)):
        whole = jnp.issubdtype(tokens.pos.dtype, jnp.integer)
        if mask.reach is not None and tokens.place is None and not whole:
            raise UserError(
                f"attend: {name}.pos has dtype {tokens.pos.dtype}: a window or a chunk counts "
                f"integers, so pass the index of each token in its document as {name}.place"
            )


def check_arrays(q_BTNH: jax.Array, k_BSNH: jax.Array, v_BSNH: jax.Array, in_order: bool) -> None:
    """Raise UserError for shapes and dtypes that no implementation supports."""
    shapes = [x.shape for x in (q_BTNH, k_BSNH, v_BSNH)]
    if any(len(shape) != 4 or 0 in shape for shape in shapes):
        raise UserError(
            f"attend: q, k and v must have four non-empty axes [B, T, N, H], but are {shapes}"
        )
    if k_BSNH.shape[:3] != v_BSNH.shape[:3] or q_BTNH.shape[2:] != k_BSNH.shape[2:]:
        raise UserError(
            "attend: q and k must have the same N and H, and k and v the same B, S and N, but "
            f"q, k, v are {shapes}"
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
    "Layout",
    "Mask",
    "TabulatedBias",
    "Terms",
    "Tokens",
    "announce",
    "attend",
    "attention_logits",
    "choose_implementation",
    "seen",
]
