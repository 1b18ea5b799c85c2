"""The kernels' block sizes, the order of tiles, the skewed slab, and the segments in each part.

Shapes: N heads, P positions and distances (padded to whole blocks), K kinks, M slabs (N or 1),
R = 128 rows of a skewed slab, Q = P / 128 chunks, X tiles.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError

LANES, SUBLANES = 128, 8  # of a register
LARGEST_BLOCK = 512
LARGEST_BATCH = 8
HEAD_DIMS = (64, 128)
DTYPES = ("bfloat16", "float32")
# The on-chip memory (VMEM) of a v4 core, which is also the default limit for a kernel on later
# chips.
VMEM_BYTES = 16 * 2**20

Order = Literal["by_query", "by_key"]

# A function of a query strip of a tile that returns the first key strip of the tile in which some
# query of the strip sees some key, and the end of these strips.
KeyStrips = Callable[[jax.Array], tuple[Any, Any]]

# The names of the kernels: the prefix, "forward" or "backward", whether there are decays, whether
# keys are wider than values, and the window, if there is one.
PREFIX, DECAYS, WIDE, WINDOW = "fire_lm_attention_", "_decays", "_wide", "_window_"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The sizes of the blocks into which the kernels divide attention.

    Attributes:
      tokens: The number of queries in a tile, which is also its number of keys.
      batch: The number of sequences that the kernels process at a time.
      padded_length: The number of tokens in a sequence, padded to a multiple of `tokens`.
      in_order: Whether all sequences share a bias at the positions 0, 1, 2, ..., so that the factor
        r never increases along a sequence. Otherwise, the tables of `near_tables` are not used.
      window: The number of keys that a query sees, including its own, or None for no limit.
      decays: Whether the tokens have decays.
      wide: Whether queries and keys are wider than values.
      slices: The number of devices among which each sequence is split (see `dealt`).
      axis: The mesh axis of these devices, or None if there is only one.
      device: The index of the device whose tiles are meant; None means the device that runs.
    """

    tokens: int
    batch: int
    padded_length: int
    in_order: bool = True
    window: int | None = None
    decays: bool = False
    wide: bool = False
    slices: int = 1
    axis: str | None = None
    device: int | None = None

    @property
    def strips(self) -> int:
        """The number of strips of 128 tokens in a block."""
        return self.tokens // LANES

    @property
    def count(self) -> int:
        """The number of blocks in a sequence."""
        return self.padded_length // self.tokens

    @property
    def reach(self) -> int | None:
        """The largest number of blocks from the keys of a tile to its queries, or None."""
        return None if self.window is None else (self.window + self.tokens - 2) // self.tokens

    @property
    def reach_of_strips(self) -> int | None:
        """The largest number of strips from the keys of a part to its queries, or None."""
        return None if self.window is None else (self.window + LANES - 2) // LANES

    def first_key(self, query_block: Any) -> Any:
        """Return the key block of the first tile in a row of tiles."""
        return 0 if self.reach is None else jnp.maximum(query_block - self.reach, 0)

    def last_query(self, key_block: Any) -> Any:
        """Return the query block of the last tile in a column of tiles."""
        last = self.count - 1
        return last if self.reach is None else jnp.minimum(key_block + self.reach, last)

    def key_strips(self, query_block: jax.Array, key_block: jax.Array) -> KeyStrips:
        """Return a function of a query strip that returns the bounds of the key strips it sees."""

        def seen(query: jax.Array) -> tuple[Any, Any]:
            end = jnp.where(query_block == key_block, query + 1, self.strips)
            if self.reach_of_strips is None:
                return 0, end
            strips_before = (query_block - key_block) * self.strips + query
            return jnp.maximum(strips_before - self.reach_of_strips, 0), end

        return seen

    def kernel_name(self, which: str) -> str:
        """Return the name of the "forward" or "backward" kernel."""
        window = "" if self.window is None else f"{WINDOW}{self.window}"
        return f"{PREFIX}{which}{DECAYS * self.decays}{WIDE * self.wide}{window}"


def block_of_slices(length: int, slices: int) -> int | None:
    """Return the size of blocks for sequences that are split among devices, or None for no size.

    The blocks are the largest ones into which half of a slice can be divided.
    """
    half, rest = divmod(length, 2 * slices)
    sizes = [size for size in range(LANES, LARGEST_BLOCK + 1, LANES) if half and half % size == 0]
    return max(sizes) if sizes and not rest else None


def choose_blocks(
    length: int,
    batch: int,
    head_dim: int,
    dtype: jnp.dtype,
    block_size: int | None,
    window: int | None = None,
    decays: bool = False,
    of_values: int | None = None,
    split: bool = False,
) -> Blocks:
    """Choose the blocks, with as many sequences at a time as fit into the VMEM of a v4 core.

    Args:
      length: The number of tokens of a sequence.
      batch: The number of sequences that share a bias; it is a multiple of the number in a block.
      head_dim, dtype: The head dim and the dtype of the queries, keys and values.
      block_size: The number of tokens in a block. None splits the length into the fewest equal
        blocks of at most 512 tokens, and rounds their size up to a multiple of 128.
      window: The number of keys that a query sees, including its own. None and `length` or more
        mean that it sees all keys up to its own.
      decays: Whether the tokens have decays.
      of_values: The head dim of the values if it is smaller than that of queries and keys, or None.
      split: Whether the sequences are split among devices, which determines `block_size`.

    Raises:
      UserError: The kernels do not support the head dim or the dtype, `block_size` is not a
        multiple of 128, or a block of one sequence does not fit.
    """
    if head_dim not in HEAD_DIMS:
        raise UserError(
            f"the TPU kernel needs a head dim of 64 or 128, not {head_dim}: "
            "choose another size, or attention implementation 'blockwise'"
        )
    if dtype.name not in DTYPES:
        raise UserError(
            f"the TPU kernel needs bfloat16 or float32, not {dtype.name}: "
            "choose another dtype, or attention implementation 'blockwise'"
        )
    if block_size is None:
        count = -(-length // LARGEST_BLOCK)
        tokens = _round_up(-(-length // count), LANES)
    elif block_size % LANES or block_size < LANES:
        raise UserError(
            f"the TPU kernel's block_size is {block_size}: it must be a positive multiple of 128"
        )
    else:
        tokens = block_size

    def needed(tokens: int, batch: int) -> int:
        return vmem_bytes(tokens, batch, length, head_dim, dtype, decays, of_values, split)

    sizes = [size for size in range(1, LARGEST_BATCH + 1) if batch % size == 0]
    fitting = [size for size in sizes if needed(tokens, size) <= VMEM_BYTES]
    if not fitting:
        smaller = tokens - LANES
        while smaller > 0 and (split or needed(smaller, 1) > VMEM_BYTES):
            smaller -= LANES
        remedy = (
            f"set block_size to {smaller} or less"
            if smaller > 0
            else "choose attention implementation 'blockwise'"
        )
        raise UserError(
            f"the TPU kernel needs {needed(tokens, 1) / 2**20:.1f} MiB of VMEM for blocks of "
            f"{tokens} tokens (length {length}, head dim {head_dim}, {dtype.name}), but a core has "
            f"{VMEM_BYTES / 2**20:.0f} MiB: {remedy}"
        )
    if window is not None and window >= length:
        window = None
    wide = of_values is not None and of_values < head_dim
    padded = _round_up(length, tokens)
    return Blocks(tokens, fitting[-1], padded, window=window, decays=decays, wide=wide)


def vmem_bytes(
    tokens: int,
    batch: int,
    length: int,
    head_dim: int,
    dtype: jnp.dtype,
    decays: bool = False,
    of_values: int | None = None,
    split: bool = False,
) -> int:
    """Estimate the VMEM in bytes of the backward kernel, which needs more than the forward kernel.

    Compared with the compiler's figures, the estimate is up to 0.4 MiB too low for inputs with
    documents and tables near the diagonal. The blocks chosen with it nevertheless compile and fit.
    """
    of_values = of_values or head_dim
    # The inputs q, k, v, do and the output dv have two buffers each, because the next step's blocks
    # are copied in advance. The outputs dq and dk, and the sums of dq, dk and dv, have one each.
    per_token = (2 * (2 * head_dim + 3 * of_values) + 2 * head_dim) * dtype.itemsize
    per_token += (2 * head_dim + of_values) * 4
    if split:  # dk and dv are float32
        per_token += (head_dim + (1 if decays else 2) * of_values) * (4 - dtype.itemsize)
    per_sequence = per_token * tokens
    if decays:  # rows of k and of the sums of dq and dk, and the result; dv has one buffer
        per_sequence += ((SUBLANES + 2 * SUBLANES + 1) * 4 - of_values * dtype.itemsize) * tokens
        if head_dim > 64:  # the products with further rows take two passes and spill more
            per_sequence += 2**18
    tile = tokens * tokens * 4
    # The bias, its gradient, and the values that the compiler spills. It spills more in float32,
    # because each operand of the MXU is split into three parts.
    of_tiles = (4 if dtype == jnp.bfloat16 else 7) * tile
    # The windows of the skewed slab; its gradient, or the tables near the diagonal and their sums;
    # the sums by segment, and the sums by query and distance.
    of_tables = 6 * LANES * tokens * 4 + 2**20 + 6 * length * 4
    return batch * per_sequence + of_tiles + of_tables


def _round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def tiles(blocks: Blocks, order: Order) -> Any:
    """Return the query block and key block of each tile with a key that a query sees, `[2, X]`.

    In the order "by_query", the tiles of a row are consecutive, and the last is on the diagonal. In
    the order "by_key", the tiles of a column are consecutive, and the first is on the diagonal.

    If sequences are split among devices, the tiles are those of one device. A third row then has
    the index of the query block among its own, and a fourth that of its first query block which
    does not come before the key block: the next block whose last tile is due in the order "by_key".
    """
    if blocks.slices > 1:
        of_devices = tiles_of_devices(blocks, order)
        if blocks.device is not None:
            return of_devices[blocks.device]
        return jnp.asarray(of_devices)[jax.lax.axis_index(blocks.axis)]
    count = blocks.count
    reach = count if blocks.reach is None else blocks.reach
    if order == "by_query":
        pairs = [
            (query, key)
            for query in range(count)
            for key in range(max(0, query - reach), query + 1)
        ]
    else:
        pairs = [
            (query, key)
            for key in range(count)
            for query in range(key, min(key + reach + 1, count))
        ]
    return np.asarray(pairs, np.int32).T


def holder(half: int, slices: int) -> int:
    """Return the device that computes the queries of a half of a slice; see `dealt`."""
    return half if half < slices else last_half(half, slices)


def last_half(device: Any, slices: int) -> Any:
    """Return the index of the later half that a device computes."""
    return 2 * slices - 1 - device


@functools.cache
def tiles_of_devices(blocks: Blocks, order: Order) -> np.ndarray:
    """Return the tiles of each device, int32 `[slices, 4, X]`; see `tiles`."""
    per_half = blocks.count // (2 * blocks.slices)
    of_devices = []
    for device in range(blocks.slices):
        halves = sorted((device, last_half(device, blocks.slices)), key=lambda half: half % 2)
        queries = [half * per_half + block for half in halves for block in range(per_half)]
        due = [
            queries.index(min(q for q in queries if q >= key)) for key in range(max(queries) + 1)
        ]
        found = [
            (query, key, own, due[key])
            for own, query in enumerate(queries)
            for key in range(query + 1)
        ]
        if order == "by_key":
            found.sort(key=lambda tile: tile[1])  # equal keys keep the order of queries
        of_devices.append(np.asarray(found, np.int32).T)
    return np.stack(of_devices)


def skew(slab_MP: jax.Array) -> jax.Array:
    """Return `out` `[M, R, P]` with `out[m, r, w] = slab[m, w - r]`, or 0 where w < r.

    The 8 by 128 values of a register, for the keys j .. j + 7 and the queries i .. i + 127, form a
    block of this array, at row r = j mod 128 and column i - (j - r). If j is a multiple of 8 and i
    is a multiple of 128, then the row is a multiple of 8 and the column is a multiple of 128, so a
    kernel loads the block as one register.
    """

    def of_head(slab_P: jax.Array) -> jax.Array:
        positions = slab_P.size
        # Cutting the flattened rows into rows that are one entry shorter moves the content of each
        # row one entry further to the right than that of the row before.
        rows = jnp.broadcast_to(jnp.pad(slab_P, (0, LANES))[None], (LANES, positions + LANES))
        rows = rows.ravel()[: LANES * (positions + LANES - 1)]
        return rows.reshape(LANES, positions + LANES - 1)[:, :positions]

    # Heads are processed one at a time, because the intermediates are three times as large as the
    # result.
    return jax.lax.map(of_head, slab_MP)


def live_segments(
    slab_P: jax.Array,
    row_P: jax.Array,
    kink_K: jax.Array,
    slope_KN: jax.Array,
    blocks: Blocks,
    order: Order,
) -> jax.Array:
    """Return bounds on the segments in which the values of each 128 x 128 part of each tile lie.

    The bounds are computed from the smallest and largest values of the slab and of the factor r.

    Args:
      slab_P, row_P, kink_K, slope_KN: The tables of `Tables`, for one example and one slab.
      blocks, order: The blocks and the order of the tiles.

    Returns:
      An int32 array `[X, 1, 2 S S]`, where S is the number of strips in a block. For the part with
      query strip c and key strip a, the first segment is at index 2 (c S + a), and the last segment
      follows it.
    """
    slab_QR, row_QR = slab_P.reshape(-1, LANES), row_P.reshape(-1, LANES)
    # The distances in a part whose strips are m apart lie on both sides of 128 m.
    low_Q, high_Q = (
        pick(ends_Q, jnp.concatenate([ends_Q[:1], ends_Q[:-1]]))
        for pick, ends_Q in (
            (jnp.minimum, jnp.min(slab_QR, axis=1)),
            (jnp.maximum, jnp.max(slab_QR, axis=1)),
        )
    )
    strip_1S = np.arange(blocks.strips)[None]
    query_X, key_X, *_ = tiles(blocks, order)
    query_XS = query_X[:, None] * blocks.strips + strip_1S
    key_XS = key_X[:, None] * blocks.strips + strip_1S
    distance_XSS = (query_XS[:, :, None] - key_XS[:, None, :]).clip(min=0)
    row_2XS = jnp.stack([jnp.min(row_QR, axis=1), jnp.max(row_QR, axis=1)])[:, query_XS]
    slab_2XSS = jnp.stack([low_Q, high_Q])[:, distance_XSS]
    x_22XSS = slab_2XSS[:, None] * row_2XS[None, :, :, :, None]
    x_2XSS = jnp.stack([jnp.min(x_22XSS, axis=(0, 1)), jnp.max(x_22XSS, axis=(0, 1))], axis=-1)
    bounds_K = real_bounds(kink_K, slope_KN).reshape((1,) * x_2XSS.ndim + (-1,))
    passed = jnp.sum((bounds_K < x_2XSS[..., None]).astype(jnp.int32), axis=-1)
    return passed.reshape(passed.shape[0], 1, -1)


def real_bounds(kink_K: jax.Array, slope_KN: jax.Array) -> jax.Array:
    """Return the kinks, with infinity in place of the unused entries after the last real kink.

    Unused entries must not count as crossed. The bounds of a part may include distances to keys
    before the first token, and the x at these distances would exceed the unused entries.
    """
    bends_K = jnp.any(jnp.diff(slope_KN, axis=0) != 0, axis=1)
    real_K = jax.lax.cummax(bends_K.astype(jnp.int32), reverse=True) > 0
    return jnp.where(real_K, kink_K, jnp.inf)


def log2_scale(head_dim: int) -> float:
    """Return log2(e) / sqrt(head_dim), the factor on q·k for a softmax in base 2.

    Base 2 saves the kernels a multiplication.
    """
    return math.log2(math.e) / math.sqrt(head_dim)
