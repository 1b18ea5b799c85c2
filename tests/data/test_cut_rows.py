"""A length schedule has the text of a run at its longest length, on any number of hosts."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sample_blocks import data_dir  # noqa: F401 (fixture)
from sample_run import tiny_run

from fire_lm.data import Blocks, MaskedText, TextData, stores, train_iterator
from fire_lm.data.batches import Batch
from fire_lm.data.blocks import manifest
from fire_lm.data.blocks.manifest import Identity, Manifest, Part
from fire_lm.data.blocks.stream import BYTE_COUNTS, ENDS, LAYOUT, TOKENS, part_path
from fire_lm.training import Pretraining
from fire_lm.training.loop import next_batch

SCHEDULE = ((0, 16), (3, 64), (6, (16, 32, 64)), (12, 32))
STEPS = 16
LONGEST, ROWS = 64, 8  # of the longest rows in a batch


def run_on(data: Any, **changed: Any) -> Pretraining:
    settings = {"train_steps": STEPS, "batch_size": 32, "train_lengths": SCHEDULE}
    settings["model"] = tiny_run().model.clone(vocab_size=2**17)
    return tiny_run(data=data, **(settings | changed))


def batches_of(
    run: Pretraining, hosts: int = 1, start: int = 0, states: Any = None
) -> Iterator[tuple[Batch, list[bytes]]]:
    """Yield the batch of each step after `start`, joined over hosts, and the positions after it."""
    readers = [
        train_iterator(
            run.data,
            length=run.lengths.longest,
            batch_size=run.rows_per_step(run.lengths.longest) // hosts,
            seed=run.seed,
            shard_index=index,
            shard_count=hosts,
        )
        for index in range(hosts)
    ]
    for reader, state in zip(readers, states or (), strict=False):
        reader.set_state(state)
    for step in range(start + 1, run.train_steps + 1):
        parts = [next_batch(reader, run, step) for reader in readers]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        yield joined, [reader.get_state() for reader in readers]


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, rows in theirs.items():
            np.testing.assert_array_equal(ours[name], rows, err_msg=name)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory) -> str:
    """Write documents of 1 to 199 tokens in two parts; each token is its place in the text + 1."""
    path, parts, tokens = str(tmp_path_factory.mktemp("blocks")), [], 0
    identity = Identity("counted", "counted", "none", "0", 2**16, 2, 16)
    for index in range(2):
        lengths = np.random.default_rng(index).integers(1, 200, 50)
        size = int(lengths.sum())
        values = {
            TOKENS: tokens + 1 + np.arange(size),
            ENDS: np.cumsum(lengths),
            BYTE_COUNTS: np.ones(size),
        }
        for name, array in values.items():
            dtype, compress = LAYOUT.get(name, (identity.token_dtype, False))
            place = stores.join(part_path(path, "train", index, 2), name)
            writer = stores.ArrayWriter(place, dtype, compress=compress)
            writer.append(array.astype(dtype))
            writer.close()
        tokens += size
        parts.append(Part(50, 0, size, 0, size, ""))
    manifest.write(path, Manifest(identity, {"train": tuple(parts)}))
    return path


@pytest.fixture(params=["concat", "cut", "packed"])
def on_blocks(request, blocks) -> Pretraining:
    return run_on(Blocks(blocks, construction=request.param))


def test_an_epoch_has_each_token_once(on_blocks):
    reader = train_iterator(on_blocks.data, length=LONGEST, batch_size=ROWS, seed=0)
    rows = int(reader.description.split()[0].replace(",", ""))
    long = dataclasses.replace(on_blocks, train_steps=rows // ROWS)
    tokens = np.concatenate([batch["targets"].ravel() for batch, _ in batches_of(long)])
    places, counts = np.unique(tokens[tokens > 0], return_counts=True)
    assert set(counts) == {1}
    left = rows % ROWS * LONGEST + LONGEST  # the rows of the next batch, and the end of the text
    assert len(places) >= places[-1] - left


def test_each_step_has_the_tokens_of_a_run_at_the_longest_length(on_blocks):
    long = run_on(on_blocks.data, batch_size=ROWS, train_length=LONGEST, train_lengths=())
    found = [batch for batch, _ in batches_of(on_blocks)]
    lengths = [on_blocks.lengths.at(step) for step in range(1, STEPS + 1)]
    assert set(lengths) == {16, 32, 64}
    assert [batch["targets"].shape for batch in found] == [(512 // n, n) for n in lengths]
    expected = [batch for batch, _ in batches_of(long)]
    whole_rows = [{name: x.reshape(ROWS, LONGEST) for name, x in b.items()} for b in found]
    assert_same(whole_rows, expected)


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_share_the_batches_of_one_host(on_blocks, hosts):
    expected = list(batches_of(on_blocks))
    found = list(batches_of(on_blocks, hosts))
    # With several hosts, each cuts its own rows, which lie together in the batch.
    assert_same([batch for batch, _ in found], [batch for batch, _ in expected])
    for (_, states), (_, (state,)) in zip(found, expected, strict=True):
        assert set(states) == {state}


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_a_run_resumes_on_either_side_of_a_change(on_blocks, hosts):
    expected = list(batches_of(on_blocks))
    for start in range(1, STEPS):
        states = expected[start - 1][1] * hosts  # of one host
        resumed = next(batches_of(on_blocks, hosts, start, states))
        assert_same([resumed[0]], [expected[start][0]])


def test_a_difference_is_seen(on_blocks):
    expected = [batch for batch, _ in batches_of(on_blocks)]
    other = dataclasses.replace(on_blocks, train_lengths=((0, 16), (4, 64)))
    with pytest.raises(AssertionError):
        assert_same([batch for batch, _ in batches_of(other)], expected)


def test_masked_tokens_are_those_of_the_longest_rows(blocks):
    run = run_on(MaskedText(Blocks(blocks, construction="cut")))
    for batch, _ in batches_of(run):
        length = batch["targets"].shape[1]
        tokens = np.maximum(1, np.count_nonzero(batch["targets"], axis=1, keepdims=True))
        np.testing.assert_array_equal(batch["tokens"], np.minimum(tokens, length))
        assert batch["inputs"].shape == batch["targets"].shape == batch["weights"].shape


@pytest.mark.ci
@pytest.mark.parametrize("construction", ["concat", "packed"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_text_that_is_read_on_the_fly(data_dir, construction, hosts):  # noqa: F811
    data = TextData(data_dir, construction=construction, shuffle_buffer=50)
    run = run_on(data)
    long = run_on(data, batch_size=ROWS, train_length=LONGEST, train_lengths=())
    found = list(batches_of(run, hosts))
    for (batch, states), (expected, positions) in zip(found, batches_of(long, hosts), strict=True):
        np.testing.assert_array_equal(batch["targets"].ravel(), expected["targets"].ravel())
        assert len(states) == len(positions) == hosts
    for start in (2, 3, 4, 7, 11, 12, 13):
        resumed = next(batches_of(run, hosts, start, found[start - 1][1]))
        assert_same([resumed[0]], [found[start][0]])
