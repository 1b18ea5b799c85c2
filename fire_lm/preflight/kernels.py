"""The cycles of our attention kernels, computed from their schedules.

The number of cycles is the number of bundles, each counted as often as it runs. For FIRE, some
bundles run once per group of kinks, the points at which the slope of its MLP changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.tpu import sublane_copies
from fire_lm.attention.tpu.near_tables import TABLES, NearTables
from fire_lm.attention.tpu.parts import KINKS, near_mark
from fire_lm.attention.tpu.schedule import LANES, SUBLANES, Blocks, Order, choose_blocks, tiles
from fire_lm.attention.tpu.tables import Tables
from fire_lm.errors import RunFailed
from fire_lm.models import Decoder
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.preflight.bundles import Stretch

PREFIX = "fire_lm_attention_"
ORDERS: dict[str, Order] = {"forward": "by_query", "backward": "by_key"}


def attention_cycles(
    stretches: Sequence[Stretch],
    which: str,
    model: Decoder,
    batch: int,
    length: int,
    packed: bool,
    padded: bool,
) -> float:
    """Return a kernel's cycles for `batch` sequences and one head.

    For FIRE, the count assumes the parameters at initialisation.

    Args:
      which: "forward" or "backward".
      packed: Whether documents are packed; a bias is then built separately for each sequence.
      padded: Whether the sequences have padding as separate segments, and still share their bias.
    """
    width, dtype = model.size.head_dim, jnp.dtype(model.dtype)
    scopes = [scope for stretch in stretches for scope in stretch.scopes]
    biased = any(scope.startswith("bias") for scope in scopes)
    apart = packed and biased
    blocks = choose_blocks(length, 1 if apart else batch, width, dtype, None)
    blocks = dataclasses.replace(blocks, in_order=not (biased and (packed or padded)))
    live = None
    key = jax.random.key(0)
    if any(scope.startswith("kinks") for scope in scopes):
        encoding = next(each for each in model.encodings if has_kinks(each, length))
        live = live_segments(encoding, encoding.init(key), length, blocks, ORDERS[which])
    return batch // blocks.batch * cycles(stretches, blocks, ORDERS[which], live)


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


def live_segments(
    encoding: PositionalEncoding, params: Params, length: int, blocks: Blocks, order: Order
) -> np.ndarray:
    """Return the range of kinks that each part of each tile can contain, for head 0.

    The result is int32 `[X, 2 S S]`; see `fire_lm.attention.tpu.schedule.live_segments`.
    """
    bias = encoding.common_bias(params, length, length)
    assert bias is not None
    if not bool(bias.exact):
        raise RunFailed("the encoding at initialisation exceeds the limits of the kernel")
    tables = Tables.of(bias, None, None, blocks, length)
    live = tables.live_segments(blocks, order)
    near = NearTables.of(tables, blocks)
    return np.asarray(live if near is None else near.mark(live, blocks, order))[0, :, 0]


def cycles(
    stretches: Sequence[Stretch], blocks: Blocks, order: Order, live: np.ndarray | None
) -> float:
    """Return the cycles of one head and `blocks.batch` sequences, at one bundle per cycle."""
    return sum(
        stretch.bundles * float(np.sum(times(stretch, blocks, order, live)))
        for stretch in stretches
    )


def times(stretch: Stretch, blocks: Blocks, order: Order, live: np.ndarray | None) -> np.ndarray:
    """Return how often a stretch runs at each tile, `[X]`; `live` comes from `live_segments`.

    The suffix of a scope's name determines at which tiles the scope runs. Within a tile, a scope
    may run for each strip, for each part, or for each part with a certain number of kinks. Inside a
    loop, a stretch runs once per sequence, unless its scopes determine otherwise.
    """
    query_X, key_X = tiles(blocks, order)
    place_X = np.arange(query_X.size)
    last_query = blocks.padded_length // blocks.tokens - 1
    when = {
        "": place_X >= 0,
        "diagonal": query_X == key_X,
        "below": query_X != key_X,
        "first_key": key_X == 0,
        "later_key": key_X > 0,
        "last_query": query_X == last_query,
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
        if name in ("strips", "parts", "kinks"):
            each_X = _of_parts(name, condition, blocks, query_X == key_X, live)
        else:
            run_X = run_X * when[condition]
        if name == "later_sequences" and stretch.depth > 1:  # The compiler unrolls a loop of one.
            each_X = each_X - 1
    return run_X * each_X


def _of_parts(
    name: str, condition: str, blocks: Blocks, diagonal_X: np.ndarray, live: np.ndarray | None
) -> np.ndarray:
    """Return how often a scope for strips, parts or a number of kinks runs at each tile, `[X]`."""
    strips = blocks.strips
    if name == "strips":
        return np.full(diagonal_X.size, strips)
    query_C, key_C = np.divmod(np.arange(strips**2), strips)
    seen_XC = ~diagonal_X[:, None] | (query_C >= key_C)
    if name == "parts":
        return np.sum(seen_XC, axis=1)
    assert live is not None
    kinks_XC = live[:, 1::2] - live[:, ::2]
    if condition == "more":
        return np.sum(seen_XC * (np.maximum(kinks_XC - 1, 0) // KINKS), axis=1)
    if condition == "some":
        return np.sum(seen_XC & (kinks_XC > 0), axis=1)
    if condition == "none":
        return np.sum(seen_XC & (kinks_XC == 0), axis=1)
    if condition == "others":
        return np.sum(seen_XC & (kinks_XC <= 0), axis=1)
    if condition == "near":
        return np.sum(seen_XC & (kinks_XC < 0), axis=1)
    if condition.startswith("near_"):
        return np.sum(seen_XC & (kinks_XC == near_mark(int(condition[-1]))), axis=1)
    few_XC = np.where(kinks_XC > 0, (kinks_XC - 1) % KINKS + 1, 0)
    least, _, most = condition.partition("_to_")
    return np.sum(seen_XC & (few_XC >= int(least)) & (few_XC <= int(most or least)), axis=1)
