"""Attention to rows whose tokens are split over a mesh: each device has a slice of every row.

The queries of a slice stay on their device, as an example of their own, and the keys that they may
see are sent to it: those of the whole row, or, with a window, those of the neighbouring slices.
Positions, documents and all other terms are explicit, so the implementations compute the same as
for the whole row.

Shapes: B batch, T tokens, C slices of U tokens, N heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.attention.terms import Layout, Mask, Terms, Tokens, axes_of, parts

Tree = TypeVar("Tree")

# The place of what stands before the first token of a row, far from all tokens; and its document.
NOWHERE, NO_DOCUMENT = -(2**30), -1


@dataclasses.dataclass(frozen=True)
class Slices:
    """The split of the tokens of each row.

    Attributes:
      count: C, the number of slices, more than 1.
      batch: B, the number of rows.
      tokens: U, the number of tokens in a slice.
      sharding: The sharding of queries `[B, T, N, H]`.
    """

    count: int
    batch: int
    tokens: int
    sharding: NamedSharding

    @classmethod
    def of(cls, sharding: NamedSharding | None, shape: tuple[int, ...]) -> Slices | None:
        """Return the split of queries of this shape, or None if each device has whole rows.

        As along other axes, rows are not split if their length is not a multiple of the number of
        devices.
        """
        count = 1 if sharding is None else parts(sharding, 1, shape[1])
        if sharding is None or count == 1:
            return None
        return cls(count, shape[0], shape[1] // count, sharding)

    @property
    def as_examples(self) -> NamedSharding:
        """The sharding of arrays `[C B, U, N, ...]`."""
        by_slice = axes_of(self.sharding, 1) + axes_of(self.sharding, 0)
        return NamedSharding(self.sharding.mesh, PartitionSpec(by_slice, None, self._heads))

    @property
    def _heads(self) -> Any:
        return axes_of(self.sharding, 2) or None

    def split(self, tree: Tree) -> Tree:
        """Return the slices of arrays `[B or 1, T, ...]` as examples, `[C B, U, ...]`."""
        return self._each(tree, lambda x_BCU: jnp.moveaxis(x_BCU, 1, 0))

    def repeated(self, tree: Tree) -> Tree:
        """Return the complete rows of arrays `[B or 1, T, ...]` for each slice, `[C B, T, ...]`."""

        def rows(x_BCU: jax.Array) -> jax.Array:
            x_BT = x_BCU.reshape(self.batch, -1, *x_BCU.shape[3:])
            return jnp.broadcast_to(x_BT[None], (self.count, *x_BT.shape))

        return self._each(tree, rows)

    def with_neighbours(self, tree: Tree, before: int, after: int) -> Tree:
        """Return slices with the tokens before and after them, `[C B, before + U + after, ...]`.

        The tokens before and after a row are 0.
        """

        return self._each(
            tree, lambda x_BCU: with_neighbours(jnp.moveaxis(x_BCU, 1, 0), before, after)
        )

    def joined(self, x: jax.Array) -> jax.Array:
        """Return the rows `[B, T, N, H]` that consist of slices `[C B, U, N, H]`."""
        x = jax.lax.with_sharding_constraint(x, self.as_examples)
        x_CBU = x.reshape(self.count, self.batch, *x.shape[1:])
        x_BT = jnp.moveaxis(x_CBU, 0, 1).reshape(self.batch, -1, *x.shape[2:])
        return jax.lax.with_sharding_constraint(x_BT, self.sharding)

    def _each(self, tree: Tree, function: Callable[[jax.Array], jax.Array]) -> Tree:
        """Apply a function from `[B, C, U, ...]` to `[C, B, ...]`; return arrays `[C B, ...]`."""

        def one(x_BT: jax.Array) -> jax.Array:
            rest = x_BT.shape[2:]
            x_BT = jnp.broadcast_to(x_BT, (self.batch, *x_BT.shape[1:]))
            x_CB = function(x_BT.reshape(self.batch, self.count, self.tokens, *rest))
            out = x_CB.reshape(-1, *x_CB.shape[2:])
            heads = (None, self._heads) if rest else (None,)
            spec = PartitionSpec(self.as_examples.spec[0], *heads)
            return jax.lax.with_sharding_constraint(out, NamedSharding(self.sharding.mesh, spec))

        return jax.tree.map(one, tree)


def with_neighbours(x_CBU: jax.Array, before: int, after: int, fill: int = 0) -> jax.Array:
    """Return consecutive pieces of rows with the tokens before and after each of them.

    The result is `[C, B, before + U + after, ...]`; tokens before and after a row are `fill`.
    """
    none = jnp.full_like(x_CBU[:1], fill)
    earlier = jnp.concatenate([none, x_CBU[:-1]])[:, :, x_CBU.shape[2] - before :]
    later = jnp.concatenate([x_CBU[1:], none])[:, :, :after]
    return jnp.concatenate([earlier, x_CBU, later], axis=2)


def attend_to_rows(
    attention: Callable[..., jax.Array],
    slices: Slices,
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    tokens: Tokens,
    terms: Terms,
    mask: Mask,
) -> jax.Array:
    """Return `attention` from the queries of each slice to the keys of the whole row.

    `attention` takes the arguments of `dense_attention`; its queries and keys are different tokens.
    Each device attends to all keys of a row, including those after its queries, which are masked.
    """
    q, queries = slices.split((q_BTNH, tokens))
    k, v, keys = slices.repeated((k_BTNH, v_BTNH, tokens))
    scales = slices.split((terms.logit_scale_BT, terms.bias_scale_BT))
    terms = terms._replace(logit_scale_BT=scales[0], bias_scale_BT=scales[1])
    return slices.joined(attention(q, k, v, queries, keys, terms, mask))


def attend_to_neighbours(
    attend: Callable[..., jax.Array],
    slices: Slices,
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    tokens: Tokens,
    terms: Terms,
    mask: Mask,
    layout: Layout,
) -> jax.Array:
    """Return attention under a mask that reaches no further than the slices next to a query's own.

    Each slice is attended to as a text in order that begins with the last tokens of the slice
    before it (and ends with the first of the next one, unless the mask is causal); their own
    outputs are dropped.
    """
    assert mask.reach is not None
    before = mask.reach - 1
    after = 0 if mask.causal else before
    inputs = (q_BTNH, k_BTNH, v_BTNH, tokens.decay, terms.logit_scale_BT, terms.bias_scale_BT)
    q, k, v, decay, logit_scale, bias_scale = slices.with_neighbours(inputs, before, after)
    segment = jnp.zeros_like(tokens.places) if tokens.segment is None else tokens.segment
    pos, place, segment, inside = slices.with_neighbours(
        (tokens.pos, tokens.places, segment, jnp.ones_like(segment)), before, after
    )
    # The kernels look the positions up in tables, also those of what stands outside the row.
    filled = jnp.arange(pos.shape[1], dtype=pos.dtype)[None]
    own = Tokens(
        pos=jnp.where(inside == 1, pos, filled),
        segment=jnp.where(inside == 1, segment, NO_DOCUMENT),
        place=jnp.where(inside == 1, place, NOWHERE),
        decay=decay,
    )
    terms = terms._replace(logit_scale_BT=logit_scale, bias_scale_BT=bias_scale)
    layout = dataclasses.replace(layout, sharding=slices.as_examples)
    out = attend(q, k, v, own, own, terms, mask, layout)
    return slices.joined(out[:, before : before + slices.tokens])
