"""What attention receives besides queries, keys and values.

`Tokens` and `Terms` contain arrays; `Mask` and `Layout` are static.

Shapes: B batch, T queries, S keys, N heads.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fire_lm.attention.decay import Decay
from fire_lm.errors import UserError

# A function of the positions of queries [B or 1, T] and keys [B or 1, S] that returns the bias
# [B or 1, N, T, S] in float32, or None for no bias. It is a function so that a blockwise
# implementation computes only the bias of its current block.
BiasFn = Callable[[jax.Array, jax.Array], jax.Array | None]

# A function of scaled q·k [B, N, T, S] and the bias (or None) that returns the logits.
MixFn = Callable[[jax.Array, jax.Array | None], jax.Array]

Implementation = Literal["auto", "dense", "blockwise", "tpu"]


class Tokens(NamedTuple):
    """The tokens on one side of attention: those of the queries or those of the keys.

    The batch axis of `pos` and `place` may have size 1 if all sequences share them.

    Attributes:
      pos: The positions, `[B or 1, T]`, int32, or float32 if they are resampled.
      segment: The document that each token belongs to, int32 `[B, T]`. A query attends only to keys
        of its own document. None means that each row is one document.
      place: The index of each token in its document, int32 `[B or 1, T]`, which windows and chunks
        count (see `Mask`). None means that `pos` is this index.
      decay: The cumulative log forget gates (`cumulative_decay`), or None. The logit of query i
        and key j then contains the difference c_i - c_j.
    """

    pos: jax.Array
    segment: jax.Array | None = None
    place: jax.Array | None = None
    decay: Decay | None = None

    @property
    def places(self) -> jax.Array:
        return self.pos if self.place is None else self.place


class Terms(NamedTuple):
    """The terms of the logits besides q·k.

    Attributes:
      bias: A function of positions; see `BiasFn`. The "tpu" implementation needs a bias with
        tables: a `TabulatedBias` or a `CommonBias`. None means no bias.
      logit_scale_BT: The factor on q·k for each query, `[B or 1, T]`, or None for 1.
      bias_scale_BT: The factor on the bias for each query, `[B or 1, T]`, or None for 1.
      sink_N: The logit of a sink for each head, float32, or None. A sink takes part in the softmax
        like a key that every query sees and whose value is 0.
      mix: How logits follow from q·k and the bias, if they are not the sum; see `MixFn`. Each pair
        of a query and a key must be mixed by itself. The "tpu" implementation does not support it.
    """

    bias: BiasFn | None = None
    logit_scale_BT: jax.Array | None = None
    bias_scale_BT: jax.Array | None = None
    sink_N: jax.Array | None = None
    mix: MixFn | None = None


@dataclasses.dataclass(frozen=True)
class Mask:
    """Which keys a query sees, besides the condition that both belong to the same document.

    Windows and chunks count places (`Tokens.place`), not positions: they bound the number of keys,
    so a decoding cache of `window` keys holds what a query sees, however the positions are drawn or
    interpolated. Places restart in each document, so a document is read alike alone and packed.

    Attributes:
      causal: Whether a query sees only keys whose positions do not exceed its own.
      window: The number of keys that a query sees, including its own: those with i - j < window for
        the places i and j of query and key. Without `causal`, a query also sees the window - 1 keys
        that follow. None means no limit.
      chunk: The number of tokens in a chunk: a query sees only keys with i // chunk == j // chunk.
        None means no limit.
    """

    causal: bool = True
    window: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("window", "chunk"):
            tokens = getattr(self, name)
            if tokens is not None and (type(tokens) is not int or tokens < 1):
                raise UserError(f"{name} is {tokens!r}: it must be a positive integer, or None")

    @property
    def reach(self) -> int | None:
        """The number of places, including its own, within which all keys lie that a query sees."""
        return min((x for x in (self.window, self.chunk) if x is not None), default=None)

    @property
    def most_keys(self) -> int | None:
        """The largest number of keys that a query sees, or None if it grows with the length."""
        both_ways = not self.causal and self.reach is not None and self.reach == self.window
        return 2 * self.reach - 1 if both_ways and self.reach else self.reach

    def within(self, length: int) -> Mask:
        """Return the mask without a window or chunk that contains all of `length` places."""

        def bound(tokens: int | None) -> int | None:
            return None if tokens is None or tokens >= length else tokens

        return Mask(self.causal, bound(self.window), bound(self.chunk))


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is known about the arrays before the program runs, and how to compute attention.

    Attributes:
      in_order: Whether queries and keys are the same tokens, with positions that increase along the
        array within each segment (padding counts as a segment). Implementations may then skip the
        keys that come after a query in the array. "tpu" is fast if the tokens of each segment are
        contiguous. With a window, they must be contiguous, and places must increase by one.
      consecutive: Whether positions are 0, 1, 2, ... or, with segments, whether the positions of
        each segment increase by one per token and are below T. "tpu" requires this if there is a
        bias, and returns NaN if it does not hold.
      sharding: The sharding of the queries `[B, T, N, H]` if they are split over a mesh. "tpu"
        needs it; the others need it only if rows are split (see `attention/slices.py`).
      implementation: The requested implementation; see `choose_implementation`.
    """

    in_order: bool = False
    consecutive: bool = False
    sharding: NamedSharding | None = None
    implementation: Implementation = "auto"


def axes_of(sharding: NamedSharding, axis: int) -> tuple[str, ...]:
    """Return the mesh axes that split an axis of an array."""
    names = sharding.spec[axis] if axis < len(sharding.spec) else None
    return (names,) if isinstance(names, str) else tuple(names or ())


def parts(sharding: NamedSharding, axis: int, size: int) -> int:
    """Return the number of equal parts into which an axis of an array is split.

    It is 1 if its size is not a multiple of the number of devices along its mesh axes.
    """
    ways = math.prod(sharding.mesh.shape[name] for name in axes_of(sharding, axis))
    return 1 if size % ways else ways


NO_TERMS = Terms()
CAUSAL = Mask()
ANY_ORDER = Layout()


def seen(queries: Tokens, keys: Tokens, mask: Mask) -> jax.Array:
    """Return whether each query sees each key, bool `[B or 1, T, S]`."""
    conditions = []
    if mask.causal:
        conditions.append(keys.pos[:, None, :] <= queries.pos[:, :, None])
    if queries.segment is not None and keys.segment is not None:
        conditions.append(keys.segment[:, None, :] == queries.segment[:, :, None])
    if mask.reach is not None:
        i_BT1, j_B1S = queries.places[:, :, None], keys.places[:, None, :]
    if mask.window is not None:
        distance_BTS = i_BT1 - j_B1S if mask.causal else jnp.abs(i_BT1 - j_B1S)
        conditions.append(distance_BTS < mask.window)
    if mask.chunk is not None:
        conditions.append(i_BT1 // mask.chunk == j_B1S // mask.chunk)
    if not conditions:
        return jnp.ones((1, queries.pos.shape[1], keys.pos.shape[1]), bool)
    return functools.reduce(jnp.logical_and, conditions)
