"""Rows by index against the same constructions built token by token, and the order of rows."""

import collections

import numpy as np
import pytest
from sample_blocks import expected_rows

from fire_lm.data.blocks.permutation import permuted
from fire_lm.data.blocks.reader import segment_ids
from fire_lm.data.rows import ROWS, Rows
from fire_lm.data.spec import Construction

SEEDS = range(15)


def lengths_of(seed: int) -> list[list[int]]:
    """Draw numbers of tokens of documents, by part; some parts have one, few fill rows exactly."""
    random = np.random.default_rng(seed)
    longest = int(random.choice([3, 20, 70]))
    parts = random.integers(1, 5)
    return [random.integers(2, longest, random.integers(1, 12)).tolist() for _ in range(parts)]


def table(construction: Construction, parts: list[list[int]], length: int) -> Rows:
    ends, begin = [], 0
    for part in parts:
        ends.append(begin + np.cumsum(part))
        begin = int(ends[-1][-1])
    return ROWS[construction](length, begin, iter(ends))


def rows_of(rows: Rows) -> list[list[int]]:
    """Return the token indices of each row."""
    starts, stops = rows.spans(np.arange(rows.count))
    return [list(range(*span)) for span in zip(starts.tolist(), stops.tolist(), strict=True)]


def documents_of(parts: list[list[int]]) -> list[list[int]]:
    place, documents = 0, []
    for tokens in sum(parts, []):
        documents.append(list(range(place, place + tokens)))
        place += tokens
    return documents


def by_hand(construction: str, documents: list[list[int]], length: int) -> list[list[int]]:
    return [sum(segments, []) for segments in expected_rows(construction, documents, length)]


@pytest.mark.parametrize("construction", ROWS)
def test_rows_are_those_made_by_hand(construction):
    for seed in SEEDS:
        parts = lengths_of(seed)
        for length in (2, 5, 16, 64):
            expected = by_hand(construction, documents_of(parts), length)
            assert rows_of(table(construction, parts, length)) == expected, (seed, length)


def test_the_comparison_sees_a_wrong_construction():
    parts = lengths_of(1)
    assert rows_of(table("packed", parts, 16)) != by_hand("cut", documents_of(parts), 16)


@pytest.mark.parametrize("construction", ["cut", "packed"])
def test_nothing_is_lost(construction):
    for seed in SEEDS:
        parts = lengths_of(seed)
        held = sum(rows_of(table(construction, parts, 7)), [])
        assert held == list(range(sum(map(sum, parts))))


def test_segments_are_the_parts_of_documents():
    for seed in SEEDS:
        parts = lengths_of(seed)
        rows = table("packed", parts, 16)
        ids = segment_ids(rows, *rows.spans(np.arange(rows.count)), 16)
        for row, segments in zip(
            ids, expected_rows("packed", documents_of(parts), 16), strict=True
        ):
            expected = [n for n, segment in enumerate(segments, 1) for _ in segment]
            assert row.tolist() == expected + [0] * (16 - len(expected)), seed


def test_a_segment_that_is_not_a_document_would_be_seen():
    rows = table("packed", [[3, 4, 5]], 16)
    rows._documents = np.array([0, 3])  # omits the third document
    assert segment_ids(rows, *rows.spans(np.arange(1)), 16).max() == 2


@pytest.mark.parametrize("construction", ROWS)
def test_complete_rows_are_those_that_a_reader_has_given_out(construction):
    """After each document, all rows but the open one are complete."""
    for seed in SEEDS:
        parts = lengths_of(seed)
        documents, rows = documents_of(parts), table(construction, parts, 8)
        for read in range(1, len(documents) + 1):
            so_far = by_hand(construction, documents[:read], 8)
            given = len(so_far) - (construction == "packed")
            assert rows.complete_at(np.array([documents[read - 1][-1] + 1])) == [given]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 31, 100, 1023, 1024, 1025, 70_000])
def test_the_order_is_a_permutation(count):
    index = np.arange(count)
    for seed, epoch in ((0, 0), (0, 1), (7, 0)):
        order = permuted(index, count, seed, epoch)
        assert np.array_equal(np.sort(order), index)
        one_by_one = [int(permuted(index[i : i + 1], count, seed, epoch)[0]) for i in index[:50]]
        assert order[:50].tolist() == one_by_one, "the place of a row depends on the others asked"


def test_a_round_that_cannot_be_undone_would_be_seen(monkeypatch):
    monkeypatch.setattr("fire_lm.data.blocks.permutation._feistel", lambda v, half, keys: v // 2)
    assert len(set(permuted(np.arange(100), 100, 0, 0))) < 100


def test_seed_and_epoch_choose_the_order():
    orders = {
        permuted(np.arange(1000), 1000, seed, epoch).tobytes()
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def chi_squared(counts: np.ndarray) -> float:
    return float(np.sum((counts - counts.mean()) ** 2) / counts.mean())


def test_every_order_of_few_rows_is_about_as_frequent():
    """By chance, chi-squared exceeds the bounds once in 10,000 (6 orders) or 5,000 (24 orders)."""
    for count, orders, bound in ((3, 6, 25.7), (4, 24, 53.0)):
        seen = collections.Counter(
            tuple(permuted(np.arange(count), count, seed, 0)) for seed in range(3000)
        )
        assert len(seen) == orders
        assert chi_squared(np.array(list(seen.values()))) < bound


def test_neighbours_are_not_kept_together():
    """The shuffle is complete: neighbouring rows end up as far apart as chance makes them."""
    order = permuted(np.arange(100_000), 100_000, 0, 0)
    apart = np.abs(np.diff(order)).mean()
    assert 0.99 < apart / (100_000 / 3) < 1.01
    assert abs(np.corrcoef(np.arange(100_000), order)[0, 1]) < 0.02


def test_places_far_beyond_the_memory_of_a_table():
    count = 10**11 + 7
    index = np.random.default_rng(0).integers(0, count, 10_000)
    order = permuted(index, count, 1, 2)
    assert len(np.unique(order)) == len(np.unique(index)) and order.max() > 0.99 * count
