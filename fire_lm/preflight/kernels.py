"""The cycles of our attention kernels, computed from their schedules.

The number of cycles is the number of bundles, each counted as often as it runs. For FIRE, some
bundles run once for each part of a tile that has a certain number of kinks, the points at which the
slope of its MLP changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.tpu import sublane_copies
from fire_lm.attention.tpu.near_tables import TABLES, NearTables, listed_parts
from fire_lm.attention.tpu.part_lists import KINDS, Entry, Layout, further_passes
from fire_lm.attention.tpu.pieces import places
from fire_lm.attention.tpu.schedule import (
    DECAYS,
    LANES,
    SUBLANES,
    WIDE,
    WINDOW,
    Blocks,
    Order,
    block_of_slices,
    choose_blocks,
    tiles,
)
from fire_lm.attention.tpu.tables import Tables
from fire_lm.errors import RunFailed
from fire_lm.models import Decoder
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.preflight.bundles import Stretch

ORDERS: dict[str, Order] = {"forward": "by_query", "backward": "by_key"}


def attention_cycles(
    stretches: Sequence[Stretch],
    which: str,
    model: Decoder,
    batch: int,
    length: int,
    packed: bool,
    padded: bool,
    slices: int = 1,
) -> float:
    """Return a kernel's cycles for `batch` sequences and one head.

    If sequences are split among devices, the result is that of the slowest device. For FIRE, the
    count assumes the parameters at initialisation.

    Args:
      which: "forward" or "backward", and what follows in the kernel's name (`Blocks.kernel_name`).
      packed: Whether documents are packed; a bias is then built separately for each sequence.
      padded: Whether the sequences have padding as separate segments, and still share their bias.
      slices: The number of devices among which each sequence is split.
    """
    which, _, window = which.partition(WINDOW)
    which, wide, _ = which.partition(WIDE)
    which, decays, _ = which.partition(DECAYS)
    width, dtype = model.size.head_dim, jnp.dtype(model.dtype)
    scopes = [scope for stretch in stretches for scope in stretch.scopes]
    biased = any(scope.startswith("bias") for scope in scopes)
    split = slices > 1 and not window
    if slices > 1 and window:  # a slice with the tokens before it, as `attention.slices` has it
        length, packed = length // slices + int(window) - 1, True
    apart = packed and biased
    together = 1 if apart else batch
    of_keys = max(map(key_width, model.encodings)) if wide else width
    block_size = block_of_slices(length, slices) if split else None
    blocks = choose_blocks(
        length,
        together,
        of_keys,
        dtype,
        block_size,
        int(window) if window else None,
        bool(decays),
        of_values=width,
    )
    in_order = not (split or biased and (packed or padded))
    blocks = dataclasses.replace(blocks, in_order=in_order, slices=slices if split else 1)
    found = []
    for device in range(blocks.slices):
        of_device, parts = dataclasses.replace(blocks, device=device), None
        if "passes.each" in scopes:
            encoding = next(each for each in model.encodings if has_kinks(each, length))
            params = encoding.init(jax.random.key(0))
            parts = lists_of_parts(encoding, params, length, of_device, ORDERS[which])
        found.append(cycles(stretches, of_device, ORDERS[which], parts))
    return batch // blocks.batch * max(found)


def copies_cycles(stretches: Sequence[Stretch], heads: int, blocks: Blocks) -> float:
    """Return the cycles of a kernel of `sublane_copies` for the tables of `heads` heads."""
    rows = heads * blocks.padded_length // LANES * TABLES
    steps = math.ceil(rows / sublane_copies.ROWS)
    times = (1, steps, steps * sublane_copies.ROWS // SUBLANES)  # by loop depth
    return sum(times[stretch.depth] * stretch.bundles for stretch in stretches)


def has_kinks(encoding: PositionalEncoding, length: int) -> bool:
    """Return whether the kernel builds the bias of an encoding from kinks."""

    def kinks() -> jax.Array | None:
        params = encoding.init(jax.random.key(0))
        bias = encoding.common_bias(encoding.prepare(params), length, length)
        return None if bias is None else bias.kink_K

    found = jax.eval_shape(kinks)
    return found is not None and found.size > 0


def key_width(encoding: PositionalEncoding) -> int:
    """Return the width of a head's queries and keys after an encoding's rotation."""
    x = jax.ShapeDtypeStruct((1, 1, encoding.num_heads, encoding.head_dim), jnp.float32)

    def queries(x: jax.Array) -> jax.Array:
        pos = jnp.zeros((1, 1), jnp.int32)
        return encoding.rotate(encoding.init(jax.random.key(0)), x, x, pos, pos, 1)[0]

    return jax.eval_shape(queries, x).shape[3]


def lists_of_parts(
    encoding: PositionalEncoding, params: Params, length: int, blocks: Blocks, order: Order
) -> np.ndarray:
    """Return the lists of the parts of each tile, for head 0.

    The result is int32 `[X, W]`; see `fire_lm.attention.tpu.part_lists`.
    """
    bias = encoding.common_bias(params, length, length)
    assert bias is not None
    if not bool(bias.exact):
        raise RunFailed("the encoding at initialisation exceeds the limits of the kernel")
    tables = Tables.of(bias, None, None, blocks, length)
    lists = listed_parts(tables, NearTables.of(tables, blocks), blocks, order)
    return np.asarray(lists)[0, :, 0]


def cycles(
    stretches: Sequence[Stretch], blocks: Blocks, order: Order, lists: np.ndarray | None
) -> float:
    """Return the cycles of one head and `blocks.batch` sequences, at one bundle per cycle."""
    return sum(
        stretch.bundles * float(np.sum(times(stretch, blocks, order, lists)))
        for stretch in stretches
    )


def times(stretch: Stretch, blocks: Blocks, order: Order, lists: np.ndarray | None) -> np.ndarray:
    """Return how often a stretch runs at each tile, `[X]`; `lists` comes from `lists_of_parts`.

    The suffix of a scope's name determines at which tiles the scope runs, or for which parts of a
    tile. Inside a loop, a stretch runs once per sequence, unless its scopes determine otherwise.
    """
    query_X, key_X, *_ = tiles(blocks, order)
    place_X = np.arange(query_X.size)
    first_key_X, last_query_X = (
        np.broadcast_to(blocks.first_key(query_X), key_X.shape),
        np.broadcast_to(blocks.last_query(key_X), query_X.shape),
    )
    ends_X = np.diff(key_X, append=-1) != 0  # of columns of tiles, in the order "by_key"
    when = {
        "": place_X >= 0,
        **{place.name: np.asarray(place.holds(query_X, key_X)) for place in places(blocks)},
        "first_key": key_X == first_key_X,
        "later_key": key_X > first_key_X,
        "last_query": ends_X if blocks.slices > 1 else query_X == last_query_X,
        "first_query": np.diff(key_X, prepend=-1) != 0,
        "first_tile": place_X == 0,
        "later_tile": place_X > 0,
        "last_tile": place_X == query_X.size - 1,
    }
    if stretch.depth == 0:
        return (place_X == 0).astype(float)
    run_X = np.ones(query_X.size)
    each_X = np.full(query_X.size, blocks.batch if stretch.depth > 1 else 1)
    for scope in stretch.scopes:
        name, _, condition = scope.partition(".")
        if name == "strips":
            each_X = np.full(query_X.size, blocks.strips)
        elif scope == "parts.each":
            query_J, key_J = np.divmod(np.arange(blocks.strips**2), blocks.strips)
            apart_XJ = blocks.strips * (query_X - key_X)[:, None] + query_J - key_J
            most = blocks.reach_of_strips
            within_XJ = apart_XJ <= (np.inf if most is None else most)
            each_X = np.sum((apart_XJ >= 0) & within_XJ, axis=1)
        elif name in ("parts", "passes"):
            assert lists is not None
            each_X = _of_parts(name, condition, stretch.depth, blocks.strips, lists)
        else:
            run_X = run_X * when[condition]
        if name == "later_sequences" and stretch.depth > 1:  # The compiler unrolls a loop of one.
            each_X = each_X - 1
    return run_X * each_X


def _of_parts(name: str, kind: str, depth: int, strips: int, lists: np.ndarray) -> np.ndarray:
    """Return how often code for a kind of parts runs at each tile, `[X]`.

    Args:
      name: "parts" for the loop over the parts of `kind`, or "passes" for the loop within it that
        makes further passes over a part.
      kind: One of `part_lists.KINDS`, or "further" for the parts that need further passes.
      depth: The loop depth, 1 for the code around the loop over the parts.
    """
    if depth == 1:  # before or after the loop over the parts
        return np.ones(len(lists))
    if name == "parts" and kind != "further":
        start_X, end_X = (lists[:, KINDS.index(kind) + place] for place in range(2))
        return end_X - start_X
    start = Layout.of(strips).further
    further_XP = np.arange(strips**2) < lists[:, start - 1 : start]
    if depth == 2:
        return np.sum(further_XP, axis=1)
    entry = Entry.of(lists[:, start : start + strips**2])
    return np.sum(further_XP * further_passes(entry.last - entry.first), axis=1)
