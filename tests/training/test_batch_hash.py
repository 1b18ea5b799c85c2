"""The hash of batches depends on every token, segment and batch, but not on the layout."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fire_lm.training.batch_hash import batch_hash, chained


@functools.cache
def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    targets = random.integers(0, 300, (8, 16)).astype(np.int32)
    return {"targets": targets, "segment_ids": (targets % 3).astype(np.int32)}


def found(arrays: dict[str, np.ndarray]) -> list[int]:
    return jax.jit(batch_hash)(arrays).tolist()


def test_every_token_and_segment_counts():
    hashes = {tuple(found(batch()))}
    for name in batch():
        for row, column in ((0, 0), (3, 7), (7, 15)):
            changed = {key: array.copy() for key, array in batch().items()}
            changed[name][row, column] += 1
            hashes.add(tuple(found(changed)))
    assert len(hashes) == 7
    targets = {"targets": batch()["targets"]}
    assert found(targets) != found(batch()) != found({**batch(), "segment_ids": targets["targets"]})


def test_places_within_a_row_and_rows_that_are_swapped_in_part_count():
    before = found(batch())
    for targets in (
        batch()["targets"][:, ::-1],
        np.roll(batch()["targets"], 1, axis=0),  # each row with another row's segments
        np.concatenate([batch()["targets"][:1], batch()["targets"][:-1]]),  # one row twice
    ):
        assert found({**batch(), "targets": targets}) != before


def test_the_layout_does_not_count():
    before = found(batch())
    assert found({name: array[::-1] for name, array in batch().items()}) == before
    for devices in (1, 2, 4):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        assert found({k: jax.device_put(a, sharding) for k, a in batch().items()}) == before


def test_the_order_of_batches_counts():
    one, two = [1, 2], [3, 4]
    chain = [chained(chained("", a), b) for a in (one, two) for b in (one, two)]
    assert len(set(chain)) == 4 and all(len(text) == 16 for text in chain)


def test_hashes_of_random_batches_do_not_meet():
    random = np.random.default_rng(1)
    many = random.integers(0, 2, (3000, 2, 8)).astype(np.int32)  # few distinct tokens: similar rows
    hashes = np.asarray(jax.jit(jax.vmap(lambda rows: batch_hash({"targets": rows})))(many))
    sets = {tuple(sorted(row.tobytes() for row in rows)) for rows in many}
    assert len(np.unique(hashes, axis=0)) == len(sets)
    # Each bit is set half of the time: 3,000 draws stay within 5 standard deviations.
    bits = np.unpackbits(np.unique(hashes, axis=0).view(np.uint8), axis=1).mean(axis=0)
    assert np.all(np.abs(bits - 0.5) < 5 * 0.5 / np.sqrt(len(sets)))


@pytest.mark.parametrize("wrong", ["abc", "0" * 16])
def test_a_lost_chain_would_be_seen(wrong):
    assert chained(wrong, [1, 2]) != chained("", [1, 2])
