"""The kernels' scalars: tiles, blocks, the skewed slab and live segments.

Shapes: N heads, P positions and distances (padded to whole blocks), K kinks, M slabs (N or 1),
R = 128 rows of a skewed slab, Q = P / 128 chunks, X tiles.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError

LANES, SUBLANES = 128, 8  # of a register
LARGEST_BLOCK = 512
LARGEST_BATCH = 8
HEAD_DIMS = (64, 128)
DTYPES = ("bfloat16", "float32")
# On-chip memory (VMEM) of a v4 core; on later chips, what a kernel gets without asking.
VMEM_BYTES = 16 * 2**20

Order = Literal["by_query", "by_key"]


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The tiling of attention: `tokens` queries by as many keys, `batch` sequences at a time."""

    tokens: int
    batch: int
    padded_length: int

    @property
    def strips(self) -> int:
        """The number of strips of 128 tokens in a block."""
        return self.tokens // LANES


def choose_blocks(
    length: int, batch: int, head_dim: int, dtype: jnp.dtype, block_size: int | None
) -> Blocks:
    """The largest blocks that fit a v4 core; a `block_size` that does not fit is refused."""
    if head_dim not in HEAD_DIMS:
        raise UserError(
            f"the TPU kernel takes a head dim of 64 or 128, not {head_dim}: "
            "choose another size, or attention implementation 'blockwise'"
        )
    if dtype.name not in DTYPES:
        raise UserError(
            f"the TPU kernel takes bfloat16 or float32, not {dtype.name}: "
            "choose another dtype, or attention implementation 'blockwise'"
        )
    if block_size is None:
        count = -(-length // LARGEST_BLOCK)
        tokens = _round_up(-(-length // count), LANES)
    elif block_size % LANES or block_size < LANES:
        raise UserError(f"the TPU kernel's block is {block_size} tokens, not a multiple of 128")
    else:
        tokens = block_size

    def needed(tokens: int, batch: int) -> int:
        return vmem_bytes(tokens, batch, length, head_dim, dtype)

    sizes = [size for size in range(1, LARGEST_BATCH + 1) if batch % size == 0]
    fitting = [size for size in sizes if needed(tokens, size) <= VMEM_BYTES]
    if not fitting:
        smaller = tokens - LANES
        while smaller > 0 and needed(smaller, 1) > VMEM_BYTES:
            smaller -= LANES
        instead = (
            f"a block of {smaller} fits" if smaller > 0 else "choose implementation 'blockwise'"
        )
        raise UserError(
            f"the TPU kernel needs {needed(tokens, 1) / 2**20:.1f} MiB for a block of {tokens} of "
            f"{length} tokens of a {head_dim}-wide {dtype.name} head, and a core has "
            f"{VMEM_BYTES / 2**20:.0f}: {instead}"
        )
    return Blocks(tokens, fitting[-1], _round_up(length, tokens))


def vmem_bytes(tokens: int, batch: int, length: int, head_dim: int, dtype: jnp.dtype) -> int:
    """Estimate the VMEM of the backward kernel, the larger one; a little above what trials show."""
    block = tokens * head_dim
    # Inputs q, k, v, do and outputs dk, dv twice, for the next step's copies; sums of dk, dv, dq.
    per_sequence = 2 * 6 * block * dtype.itemsize + 3 * block * 4
    tile = tokens * tokens * 4
    # The bias and its gradient, and what the compiler spills: float32 operands go to the MXU in
    # three parts each.
    of_tiles = (4 if dtype == jnp.bfloat16 else 7) * tile
    # Windows of the skewed slab, sums by segment, and sums by query and distance.
    of_tables = 6 * LANES * tokens * 4 + 2**20 + 6 * length * 4
    return batch * per_sequence + of_tiles + of_tables


def _round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def tiles(blocks: Blocks, order: Order) -> np.ndarray:
    """Query block and key block of every tile on or below the diagonal, int32 `[2, X]`.

    By query, a row of tiles ends on the diagonal; by key, a column starts there.
    """
    count = blocks.padded_length // blocks.tokens
    if order == "by_query":
        pairs = [(query, key) for query in range(count) for key in range(query + 1)]
    else:
        pairs = [(query, key) for key in range(count) for query in range(key, count)]
    return np.asarray(pairs, np.int32).T


def skew(slab_MP: jax.Array) -> jax.Array:
    """`[M, R, P]` with `out[m, r, w] = slab[m, w - r]`, 0 before its start.

    The 8 by 128 values of a register, those of keys j .. j + 7 and queries i .. i + 127, lie
    together in it, at a multiple of 8 and of 128 where i and j - r are such: a kernel only loads.
    """

    def of_head(slab_P: jax.Array) -> jax.Array:
        positions = slab_P.size
        # Every row is one shorter than what it is cut from, so it starts one later than the last.
        rows = jnp.broadcast_to(jnp.pad(slab_P, (0, LANES))[None], (LANES, positions + LANES))
        rows = rows.ravel()[: LANES * (positions + LANES - 1)]
        return rows.reshape(LANES, positions + LANES - 1)[:, :positions]

    # One after the other: what lies between is three times as large as what comes out.
    return jax.lax.map(of_head, slab_MP)


def live_segments(
    slab_P: jax.Array,
    row_P: jax.Array,
    kink_K: jax.Array,
    slope_KN: jax.Array,
    blocks: Blocks,
    order: Order,
) -> jax.Array:
    """First and last segment that each 128 x 128 part of each tile can meet, int32.

    `[X, 1, 2 S S]` for S strips in a block; of the part of query strip c and key strip a, at
    2 (c S + a). Bounds, not more: taken from the extremes of the slab and of the rows.
    Of the tables of `CommonBias` by place, one example's.
    """
    slab_QR, row_QR = slab_P.reshape(-1, LANES), row_P.reshape(-1, LANES)
    # A part at a distance of m strips has distances from both sides of 128 m.
    low_Q, high_Q = (
        pick(ends_Q, jnp.concatenate([ends_Q[:1], ends_Q[:-1]]))
        for pick, ends_Q in (
            (jnp.minimum, jnp.min(slab_QR, axis=1)),
            (jnp.maximum, jnp.max(slab_QR, axis=1)),
        )
    )
    strip_S = np.arange(blocks.strips)
    query_X, key_X = tiles(blocks, order)
    query_XS = query_X[:, None] * blocks.strips + strip_S
    key_XS = key_X[:, None] * blocks.strips + strip_S
    distance_XSS = np.maximum(query_XS[:, :, None] - key_XS[:, None, :], 0)
    row_2XS = jnp.stack([jnp.min(row_QR, axis=1), jnp.max(row_QR, axis=1)])[:, query_XS]
    slab_2XSS = jnp.stack([low_Q, high_Q])[:, distance_XSS]
    x_22XSS = slab_2XSS[:, None] * row_2XS[None, :, :, :, None]
    x_2XSS = jnp.stack([jnp.min(x_22XSS, axis=(0, 1)), jnp.max(x_22XSS, axis=(0, 1))], axis=-1)
    # After the last real kink come only fillers of the table; a key before the first token,
    # which is in the first part's bounds, would pass them.
    bends_K = jnp.any(jnp.diff(slope_KN, axis=0) != 0, axis=1)
    real_K = jax.lax.cummax(bends_K.astype(jnp.int32), reverse=True) > 0
    bounds_K = jnp.where(real_K, kink_K, jnp.inf).reshape((1,) * x_2XSS.ndim + (-1,))
    passed = jnp.sum((bounds_K < x_2XSS[..., None]).astype(jnp.int32), axis=-1)
    return passed.reshape(passed.shape[0], 1, -1)


def log2_scale(head_dim: int) -> float:
    """The factor on q·k for a softmax in base 2, which saves the kernels a product."""
    return math.log2(math.e) / math.sqrt(head_dim)
