"""Forget gates: the logit of query i and key j contains the sum of log gates over j < m <= i.

Source: Lin et al., "Forgetting Transformer" (arXiv:2503.02130). With the cumulative log gates c,
the sum is c_i - c_j. A plain float32 cumsum is not enough: after 131,072 tokens that each halve the
weights, c is -95,000, where neighbouring float32 numbers differ by 0.008. Therefore, c is stored as
a whole number plus a small float32 part (`Decay`): the whole numbers are subtracted exactly, and
what remains is as exact as the sum over the few tokens that a query does not forget.

The gates of other documents change nothing (in the TPU kernels, nothing but the rounding), and
receive a gradient of exactly 0, because the sums restart in each document.

Shapes: B batch, T tokens, S keys, N heads, C blocks of R tokens.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 128  # tokens; sums within a block are plain float32


class Decay(NamedTuple):
    """The cumulative log gates `whole + part` of tokens, up to a constant for each document.

    Attributes:
      whole: The whole part, int32 `[B, T, N]`; it does not increase along a document.
      part: The rest, float32 `[B, T, N]`. Gradients flow through it.
    """

    whole: jax.Array
    part: jax.Array


def cumulative_decay(log_decay_BTN: jax.Array, segment_BT: jax.Array | None = None) -> Decay:
    """Return the cumulative log gates of tokens whose documents are contiguous.

    Args:
      log_decay_BTN: The log gate of each token, float32, at most 0. That of the first token of a
        document has no effect, because there is no key before it.
      segment_BT: The document of each token, or None if each row is one document.
    """
    batch, length, heads = log_decay_BTN.shape
    to_end = -length % BLOCK
    first_BT = jnp.arange(length + to_end)[None] == 0
    if segment_BT is not None:
        segment_BT = jnp.pad(segment_BT, ((0, 0), (0, to_end)), mode="edge")
        changes_BT = segment_BT[:, 1:] != segment_BT[:, :-1]
        first_BT = jnp.pad(changes_BT, ((0, 0), (1, 0)), constant_values=True)
    log_decay_BTN = jnp.pad(log_decay_BTN.astype(jnp.float32), ((0, 0), (0, to_end), (0, 0)))
    log_decay_BTN = jnp.where(first_BT[:, :, None], 0.0, log_decay_BTN)
    log_decay_BCRN = log_decay_BTN.reshape(batch, -1, BLOCK, heads)

    # Within a block, a product with a triangle of ones adds up the gates of a token's own document.
    triangle_RR = np.tri(BLOCK, dtype=bool)
    adds_up = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    if segment_BT is None:
        goes_on_BCR = jnp.ones((1, log_decay_BCRN.shape[1], BLOCK), bool)
        inside_BCRN = adds_up("rs,bcsn->bcrn", jnp.float32(triangle_RR), log_decay_BCRN)
    else:
        run_BCR = jnp.cumsum(first_BT.reshape(batch, -1, BLOCK), axis=2)
        goes_on_BCR = run_BCR == 0  # the document of the token before the block
        own_BCRR = (run_BCR[..., None] == run_BCR[..., None, :]) & triangle_RR[None, None]
        inside_BCRN = adds_up("bcrs,bcsn->bcrn", own_BCRR.astype(jnp.float32), log_decay_BCRN)

    def next_block(start: Decay, block: tuple[jax.Array, jax.Array]) -> tuple[Decay, Decay]:
        """Return the sum up to the end of a block, with the whole part of its rest moved."""
        sum_BN, goes_on_B1 = block
        own_BN = jnp.where(goes_on_B1, start.part, 0.0)
        return extended(start._replace(part=own_BN), sum_BN), start

    zero = Decay(jnp.zeros((batch, heads), jnp.int32), jnp.zeros((batch, heads), jnp.float32))
    blocks = jnp.moveaxis(inside_BCRN[:, :, -1], 1, 0), jnp.moveaxis(goes_on_BCR[:, :, -1:], 1, 0)
    starts = jax.lax.scan(next_block, zero, blocks)[1]
    whole_BC1N, part_BC1N = (jnp.moveaxis(x, 0, 1)[:, :, None] for x in starts)
    part_BCRN = inside_BCRN + jnp.where(goes_on_BCR[..., None], part_BC1N, 0.0)
    whole_BCRN = jnp.broadcast_to(whole_BC1N, part_BCRN.shape)
    return Decay(*(x.reshape(batch, -1, heads)[:, :length] for x in (whole_BCRN, part_BCRN)))


def extended(decay: Decay, log_decay: jax.Array) -> Decay:
    """Return the cumulative log gates after further tokens, whose log gates add up to `log_decay`.

    The part of the result is at most 1/2, so errors do not grow with the length of the text.
    """
    part = log_decay + decay.part
    moved = jnp.round(jax.lax.stop_gradient(part))
    return Decay(decay.whole + moved.astype(jnp.int32), part - moved)


def log_decay_between(queries: Decay, keys: Decay) -> jax.Array:
    """Return the log decay between each query and each key, float32 `[B, N, T, S]`.

    It is meaningful only for keys that are not after the query, in the query's document.
    """
    (i, in_i), (j, in_j) = (tuple(jnp.moveaxis(x, 2, 1) for x in side) for side in (queries, keys))
    whole_BNTS = (i[..., None] - j[..., None, :]).astype(jnp.float32)
    return whole_BNTS + (in_i[..., None] - in_j[..., None, :])
