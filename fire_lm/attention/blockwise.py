"""Attention in blocks of query rows on any backend, with O(n) memory for sequences of length n.

Each block is dense attention from its query rows to the keys that these rows may see. The backward
pass recomputes the block, so the logits and the bias of only one block exist at a time. The loop is
a `lax.map`, because XLA could run the blocks of an unrolled Python loop in parallel, which would
need more memory. All iterations of a map have the same shapes. The rows are therefore first divided
into a few groups, and every block of a group receives the keys up to the end of that group. The
fraction of query-key pairs that is computed needlessly above the diagonal is (groups + 1) / (2
groups) - 1/2, which is 6 % with eight groups.

With a short window, the rows are first divided into spans at least as long as the window. The rows
of a span see only keys of this span and of the one before, so the loop is over spans, and the
groups divide the rows of a span.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fire_lm.attention.dense import dense_attention
from fire_lm.attention.slices import NOWHERE, with_neighbours
from fire_lm.attention.terms import CAUSAL, NO_TERMS, Mask, Terms, Tokens

T = TypeVar("T")


class Rows(NamedTuple):
    """Queries, with what belongs to each of them, `[B or 1, T, ...]`."""

    q: jax.Array
    tokens: Tokens
    logit_scale: jax.Array | None
    bias_scale: jax.Array | None


class Columns(NamedTuple):
    """Keys and values, with what belongs to each of them, `[B or 1, S, ...]`."""

    k: jax.Array
    v: jax.Array
    tokens: Tokens


def blockwise_attention(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    queries: Tokens,
    keys: Tokens,
    terms: Terms = NO_TERMS,
    mask: Mask = CAUSAL,
    *,
    in_order: bool = False,
    block_size: int = 64,
    groups: int = 8,
) -> jax.Array:
    """Compute `dense_attention` in blocks of query rows; return `[B, T, N, H]`.

    A block has at most `block_size` rows. If `in_order` is set, queries and keys are the same
    tokens in order. Most keys that come after a query in the array, or that are beyond its window,
    are then skipped.
    """
    length = q_BTNH.shape[1]
    # The gradients of k and v are sums over the blocks. They are accumulated in float32, whatever
    # the dtype of k and v.
    columns = Columns(k_BSNH.astype(jnp.float32), v_BSNH.astype(jnp.float32), keys)
    rows = Rows(q_BTNH, queries, terms.logit_scale_BT, terms.bias_scale_BT)
    attend = functools.partial(
        _attend_rows, dtype=k_BSNH.dtype, terms=terms, mask=mask, block_size=block_size
    )
    reach = mask.reach if in_order else None
    if reach is not None and 2 * reach <= length:
        return _attend_spans(rows, columns, attend, mask.causal, reach, block_size, groups)
    skips = in_order and mask.causal
    outs = []
    for first, last in _group_edges(length, block_size, groups if skips else 1):
        start = 0 if reach is None else max(0, first - reach + 1)
        before = _cut(columns, start, last) if skips else columns
        outs.append(attend(_cut(rows, first, last), before))
    return jnp.concatenate(outs, axis=1)


def _group_edges(length: int, block_size: int, groups: int) -> list[tuple[int, int]]:
    """Return the first row of each group and the row after its last, in whole blocks."""
    blocks = -(-length // block_size)
    groups = min(groups, blocks)
    edges = [block_size * (blocks * edge // groups) for edge in range(groups + 1)]
    return list(itertools.pairwise(edges))


def _cut(tree: T, start: int, stop: int) -> T:
    return jax.tree.map(lambda x: x[:, start:stop], tree)


def _attend_spans(
    rows: Rows,
    columns: Columns,
    attend: Callable[..., jax.Array],
    causal: bool,
    reach: int,
    block_size: int,
    groups: int,
) -> jax.Array:
    """Compute attention from rows to the columns fewer than `reach` places away, span by span."""
    batch, length = rows.q.shape[:2]
    halo = block_size * -(-(reach - 1) // block_size)
    blocks = -(-length // block_size)
    of_span = -(-blocks // -(-blocks // groups))  # as many spans as needed, equally long
    span = max(block_size * of_span, halo)
    after = 0 if causal else halo

    def with_halo(x: jax.Array, fill: int = 0) -> jax.Array:
        """Return the columns that each span sees, `[spans, B, halo + span + after, ...]`."""
        return with_neighbours(_blocks(x, span, fill), halo, after, fill)

    place = with_halo(columns.tokens.places, fill=NOWHERE)
    columns = jax.tree.map(with_halo, columns)
    columns = columns._replace(tokens=columns.tokens._replace(place=place))

    @jax.checkpoint
    def attend_span(inputs: tuple[Rows, Columns]) -> jax.Array:
        rows, columns = inputs
        # One block is small enough to be kept while its span is processed.
        outs = [
            attend(
                _cut(rows, first, last),
                _cut(columns, first, last + halo + after),
                again=last - first > block_size,
            )
            for first, last in _group_edges(span, block_size, groups)
        ]
        return jnp.concatenate(outs, axis=1)

    out = jax.lax.map(attend_span, (jax.tree.map(lambda x: _blocks(x, span), rows), columns))
    return jnp.moveaxis(out, 0, 1).reshape(batch, -1, *out.shape[3:])[:, :length]


def _attend_rows(
    rows: Rows,
    columns: Columns,
    *,
    dtype: jnp.dtype,
    terms: Terms,
    mask: Mask,
    block_size: int,
    again: bool = True,
) -> jax.Array:
    """Compute dense attention from `rows` to `columns`, one block of rows at a time.

    `again` is whether the backward pass recomputes each block.
    """

    def attend_block(block: Rows) -> jax.Array:
        return dense_attention(
            block.q,
            columns.k.astype(dtype),
            columns.v.astype(dtype),
            block.tokens,
            columns.tokens,
            terms._replace(logit_scale_BT=block.logit_scale, bias_scale_BT=block.bias_scale),
            mask,
        )

    batch, length = rows.q.shape[:2]
    size = _equal_size(length, block_size)
    blocks = jax.tree.map(lambda x: _blocks(x, size), rows)
    out = jax.lax.map(jax.checkpoint(attend_block) if again else attend_block, blocks)
    return jnp.moveaxis(out, 0, 1).reshape(batch, -1, *out.shape[3:])[:, :length]


def _equal_size(length: int, largest: int) -> int:
    """Return the rows of a block if as few blocks as possible divide `length` equally.

    If there are several blocks, each has a multiple of 8 rows, the unit of a TPU's memory, or the
    largest number.
    """
    blocks = -(-length // largest)
    return length if blocks == 1 else min(largest, 8 * -(-length // (8 * blocks)))


def _blocks(x: jax.Array, size: int, fill: int | None = None) -> jax.Array:
    """Split `[B, T, ...]` into `[blocks, B, size, ...]`.

    The last block is padded with `fill`, or with copies of the last row.
    """
    padding = [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2)
    if fill is None:
        x = jnp.pad(x, padding, mode="edge")
    else:
        x = jnp.pad(x, padding, constant_values=fill)
    blocks = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    return jnp.moveaxis(blocks, 1, 0)
