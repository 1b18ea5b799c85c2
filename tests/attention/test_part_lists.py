"""The segments in each part of a tile, and the lists of parts that the kernels process."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from sample_attention import fire_tables

from fire_lm.attention.tpu.part_lists import (
    FIRST_NEAR,
    KINDS,
    KINKS,
    NEAR,
    Entry,
    Layout,
    part_lists,
)
from fire_lm.attention.tpu.schedule import Blocks, live_segments, tiles


@pytest.mark.parametrize("order", [pytest.param("by_query", marks=pytest.mark.ci), "by_key"])
def test_live_segments_hold_those_of_every_value(order):
    """The bounds include the segment of every value, and few others far from the diagonal."""
    blocks = Blocks(256, 1, 1024)
    tables = fire_tables(1024)
    bounds = (tables.slab_MP[0], tables.row_P, tables.kink_K, tables.slope_KN)
    live = np.asarray(live_segments(*bounds, blocks, order))
    row, slab = np.asarray(tables.row_P), np.asarray(tables.slab_MP[0])
    for tile, (query_block, key_block) in enumerate(tiles(blocks, order).T):
        for part in range(4):
            query = query_block * 256 + part // 2 * 128 + np.arange(128)[None]
            key = key_block * 256 + part % 2 * 128 + np.arange(128)[:, None]
            seen = query >= key
            x = np.where(seen, slab[np.maximum(query - key, 0)] * row[query], np.nan)
            segment = np.searchsorted(np.asarray(tables.kink_K), x[seen])
            first, last = live[tile, 0, 2 * part : 2 * part + 2]
            assert 0 <= first <= last <= tables.kink_K.size
            if segment.size:
                assert first <= segment.min() and segment.max() <= last
    far = np.flatnonzero(np.subtract(*tiles(blocks, order)) == 3)
    assert np.max(live[far, 0, 1::2] - live[far, 0, ::2]) <= 4


@pytest.mark.parametrize("order, tables", [("by_query", True), ("by_key", True), ("by_key", False)])
def test_each_part_is_listed_once_with_the_code_for_its_kinks(order, tables):
    """Parts above the diagonal are not counted; parts with more than `KINKS` kinks are in both."""
    blocks, rng = Blocks(512, 1, 1536), np.random.default_rng(0)
    query_block, key_block = tiles(blocks, order)
    first, kinks = rng.integers(0, 242, (2, 6, 16)), rng.integers(0, 14, (2, 6, 16))
    near = np.where(rng.random((6, 16)) < 0.2 * tables, rng.integers(0, len(NEAR), (6, 16)), -1)
    live = np.stack([first, first + kinks], axis=-1).reshape(2, 6, 1, 32).astype(np.int32)
    lists = np.asarray(
        part_lists(jnp.asarray(live), jnp.asarray(near) if tables else None, blocks, order)
    )
    layout = Layout.of(4)
    for example, tile in np.ndindex(2, 6):
        numbers = lists[example, tile, 0]
        starts = numbers[: len(KINDS) + 1]
        passed = {
            tuple(Entry.of(numbers[layout.parts + index]))[:2]: [kind]
            for kind, (start, end) in enumerate(itertools.pairwise(starts))
            for index in range(start, end)
        }
        for index in range(numbers[layout.further - 1]):
            passed[tuple(Entry.of(numbers[layout.further + index]))[:2]].append("further")
        wanted = {}
        for part, (query, key) in enumerate(np.ndindex(4, 4)):
            if query_block[tile] == key_block[tile] and key > query:
                continue
            count = kinks[example, tile, part]
            if near[tile, part] >= 0:
                wanted[query, key] = [FIRST_NEAR + near[tile, part]]
            else:
                passes = max(0, -(-count // KINKS) - 1)
                wanted[query, key] = [count - KINKS * passes, *["further"][:passes]]
        assert passed == wanted and starts[-1] == len(wanted)
        places = [
            *range(starts[-1]),
            *range(layout.further - layout.parts, numbers.size - layout.parts),
        ]
        entries = [Entry.of(numbers[layout.parts + place]) for place in places]
        for query, key, *segments in entries:
            part = 4 * query + key
            start = first[example, tile, part]
            assert segments == [start, start + kinks[example, tile, part]]
