"""Batches from blocks: any process count, any step, exact resume; scoring as through seqio."""

import collections
import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from sample_vocabulary import MODEL

from fire_lm.data import Blocks, NoText, ScoringText, TextData, scoring_text, train_iterator
from fire_lm.data.blocks import reader
from fire_lm.data.blocks.writer import write_blocks
from fire_lm.data.rows import ROWS
from fire_lm.data.spec import Construction
from fire_lm.errors import RunFailed, UserError
from fire_lm.storage import objects

ROOT = Path(__file__).resolve().parents[2]
LENGTH, GLOBAL_BATCH = 16, 12


def document(number: int) -> bytes:
    letters = list("abc  xyz\n\té漢😀.")
    random = np.random.default_rng(number)
    return f"{number}:{''.join(random.choice(letters, random.integers(1, 90)))}!".encode()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    from fire_lm.data.corpora import c4_writer

    folder = tmp_path_factory.mktemp("text")
    bad = {"blank": b" \n ", "empty": b"", "broken": b"caf\xe9"}
    texts = {f"number {n}": document(n) for n in range(90)}
    c4_writer.write(folder, {"train": texts | bad, "validation": texts | bad})
    return str(folder)


@pytest.fixture(scope="module")
def path(data_dir, tmp_path_factory) -> str:
    """Write several parts for training and one for scoring in seqio's order; return their path."""
    output = str(tmp_path_factory.mktemp("blocks"))
    write_blocks(TextData(data_dir), output, splits=["train"], parts=5)
    write_blocks(TextData(data_dir), output, splits=["validation"])
    return output


def iterator(path: str, construction="concat", **arguments) -> reader.BlockIterator:
    given = dict(length=LENGTH, batch_size=GLOBAL_BATCH, seed=3) | arguments
    batches = train_iterator(Blocks(path, "bytes", construction), **given)
    assert isinstance(batches, reader.BlockIterator)
    return batches


def shards_of(path: str, construction: str, processes: int) -> list[reader.BlockIterator]:
    """Return the iterators of processes that share the batches."""
    shard = {"batch_size": GLOBAL_BATCH // processes, "shard_count": processes}
    return [iterator(path, construction, shard_index=index, **shard) for index in range(processes)]


def take(batches: reader.BlockIterator, count: int) -> list[dict[str, np.ndarray]]:
    return [next(batches) for _ in range(count)]


def assert_same(ours: list[dict[str, np.ndarray]], theirs: list[dict[str, np.ndarray]]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_every_construction_has_rows():
    assert set(ROWS) == set(get_args(Construction))


@pytest.mark.parametrize("construction", ROWS)
@pytest.mark.parametrize("processes", [2, 3, 4, 12])
def test_the_batch_is_the_same_for_any_number_of_processes(path, construction, processes):
    alone = take(iterator(path, construction), 9)
    shards = [take(shard, 9) for shard in shards_of(path, construction, processes)]
    for step, batch in enumerate(alone):
        assert np.array_equal(batch["weights"], batch["targets"] != 0)
        for name in batch:
            joined = np.concatenate([shard[step][name] for shard in shards])
            assert np.array_equal(joined, batch[name])


def test_an_epoch_holds_every_row_once(path):
    batches = iterator(path, "cut", batch_size=1)
    count = batches._rows.count
    epochs = [
        [next(batches)["targets"].tobytes() for _ in range(count)],
        [next(batches)["targets"].tobytes() for _ in range(count)],
    ]
    everything = scoring_text(
        Blocks(path, construction="cut"), length=LENGTH, num_sequences=10**6, split="train"
    )
    rows = sorted(row.tobytes() for row in everything.targets)
    assert sorted(epochs[0]) == sorted(epochs[1]) == rows
    assert epochs[0] != epochs[1], "another epoch, another order"


def test_seed_decides_the_order(path):
    first = take(iterator(path), 2)
    assert_same(first, take(iterator(path), 2))
    with pytest.raises(AssertionError):
        assert_same(first, take(iterator(path, seed=4), 2))


@pytest.mark.parametrize("construction", ROWS)
def test_resume_on_another_number_of_processes_also_past_an_epoch(path, construction):
    whole = iterator(path, construction)
    rows = whole._rows.count
    steps = 2 * rows // GLOBAL_BATCH + 3
    batches = take(whole, steps)
    drawn = np.random.default_rng(rows).integers(1, steps - 2, 2)
    for stop in (0, *drawn, rows // GLOBAL_BATCH, steps - 2):
        before = shards_of(path, construction, 4)
        states = {(take(shard, stop), shard.get_state())[1] for shard in before}
        assert len(states) == 1 and len(*states) < 300
        for processes in (1, 2, 3):
            shards = shards_of(path, construction, processes)
            for shard in shards:
                shard.set_state(*states)
            after = [take(shard, 2) for shard in shards]
            for step in range(2):
                joined = np.concatenate([shard[step]["targets"] for shard in after])
                assert np.array_equal(joined, batches[stop + step]["targets"])


def test_a_position_means_samples_so_the_batch_may_grow(path):
    small, large = iterator(path, batch_size=4), iterator(path, batch_size=8)
    take(small, 6)
    large.set_state(small.get_state())
    expected = np.concatenate([batch["targets"] for batch in take(small, 2)])
    assert np.array_equal(next(large)["targets"], expected)


def test_state_after_reading_ahead_is_that_of_what_was_handed_out(path):
    batches = iterator(path)
    take(batches, 3)
    state = batches.get_state()
    expected = take(batches, 4)
    batches.set_state(state)
    assert_same(take(batches, 4), expected)
    assert json.loads(state)["samples"] == 3 * GLOBAL_BATCH


def test_batches_are_assembled_ahead_and_no_further(path, monkeypatch):
    assembled, assemble = [], reader.BlockIterator.batch

    def watched(self, first):
        assembled.append((first // GLOBAL_BATCH, threading.current_thread().name))
        return assemble(self, first)

    monkeypatch.setattr(reader.BlockIterator, "batch", watched)
    batches = iterator(path)
    next(batches)
    batches._reader.shutdown()  # waits for pending reads
    assert [number for number, _ in assembled] == list(range(reader.BATCHES_AHEAD))
    assert all(thread.startswith("blocks") for _, thread in assembled)


def test_a_batch_that_failed_comes_again(path, tmp_path):
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    batches = iterator(str(copy))
    state = batches.get_state()
    whole = {file: file.read_bytes() for file in copy.glob("train/*/tokens/c/0")}
    for file, content in whole.items():
        file.write_bytes(content[:-9])
    for _ in range(2):
        with pytest.raises(RunFailed, match="Reading the blocks in .* failed"):
            next(batches)
    assert batches.get_state() == state
    # A discarded read-ahead may still be running and could read half of what is written below.
    batches._reader.submit(lambda: None).result()
    for file, content in whole.items():
        file.write_bytes(content)
    assert_same(take(batches, 6), take(iterator(path), 6))


def assert_scored_alike(ours: ScoringText, theirs: ScoringText) -> None:
    for name in ("targets", "byte_counts"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert (ours.skipped, ours.unknown) == (theirs.skipped, theirs.unknown)
    assert (ours.segment_ids is None) == (theirs.segment_ids is None)
    if ours.segment_ids is not None and theirs.segment_ids is not None:
        assert np.array_equal(ours.segment_ids, theirs.segment_ids)


@pytest.mark.parametrize("construction", ROWS)
@pytest.mark.parametrize(
    "length, sequences",
    [
        (16, 40),
        (50, 10**6),
        pytest.param(2, 3, marks=pytest.mark.ci),
        pytest.param(100, 2, marks=pytest.mark.ci),
    ],
)
def test_what_is_scored_is_what_seqio_gives(path, data_dir, construction, length, sequences):
    asked = {"length": length, "num_sequences": sequences, "split": "validation"}
    ours = scoring_text(Blocks(path, "bytes", construction), **asked)
    assert_scored_alike(ours, scoring_text(TextData(data_dir, construction=construction), **asked))


@pytest.mark.ci
def test_it_is_what_seqio_gives_also_of_unknown_pieces(data_dir, tmp_path):
    data = TextData(data_dir, vocabulary=MODEL, construction="packed")
    write_blocks(data, str(tmp_path), splits=["validation"])
    asked = {"length": 64, "num_sequences": 20, "split": "validation"}
    ours = scoring_text(Blocks(str(tmp_path), MODEL, "packed"), **asked)
    assert ours.unknown > 0.1 and ours.segment_ids is not None
    assert_scored_alike(ours, scoring_text(data, **asked))
    for name, other in (("unknown", 0.0), ("segment_ids", ours.segment_ids * 0)):
        with pytest.raises(AssertionError):
            assert_scored_alike(dataclasses.replace(ours, **{name: other}), ours)


@pytest.mark.ci
def test_epochs_of_training_are_what_seqio_gives(path, data_dir):
    """Both sources give the same rows equally often.

    Each row has one document, so that the order of the files does not matter. There are as many
    epochs as a group has documents, so that the last group ends with an epoch.
    """
    from fire_lm.data.on_the_fly.preprocessors import DOCUMENTS_PER_GROUP

    rows = iterator(path, "cut")._rows.count
    on_the_fly = TextData(data_dir, construction="cut", shuffle_buffer=1)
    found = []
    for source in (Blocks(path, construction="cut"), on_the_fly):
        batches = train_iterator(source, length=LENGTH, batch_size=rows, seed=0)
        targets = (row for _ in range(DOCUMENTS_PER_GROUP) for row in next(batches)["targets"])
        found.append(collections.Counter(row.tobytes() for row in targets))
    assert found[0] == found[1]
    assert set(found[0].values()) >= {DOCUMENTS_PER_GROUP}


def test_packed_text_to_score_has_its_segments(path):
    text = scoring_text(
        Blocks(path, construction="packed"), length=256, num_sequences=10**6, split="validation"
    )
    assert text.segment_ids is not None and text.segment_ids.max() > 2
    assert np.array_equal(text.segment_ids != 0, text.targets != 0)
    begins = np.diff(text.segment_ids, axis=1) > 0
    assert np.array_equal(begins, (text.targets[:, :-1] == 1) & (text.targets[:, 1:] != 0))
    whole = scoring_text(Blocks(path), length=2, num_sequences=10**6, split="validation")
    assert text.byte_counts.sum() - whole.byte_counts.sum() in (0, 1)  # concat may lose one token


WITHOUT = """
import sys

for name in ("tensorflow", "seqio", "tensorflow_datasets", "gin"):
    sys.modules[name] = None  # neither importable nor found, as where it is not installed
"""


def test_reading_needs_neither_tensorflow_nor_seqio_nor_gin(path):
    code = f"""{WITHOUT}
import fire_lm.data as d
data = d.Blocks({path!r}, "bytes", "packed")
batch = next(d.train_iterator(data, length=16, batch_size=4, seed=0))
text = d.scoring_text(data, length=16, num_sequences=4)
print(batch["targets"].shape, text.targets.shape, data.vocabulary_size(), data.label())
import fire_lm.data.vocabularies
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "(4, 16) (4, 16) 259 c4\n", done.stderr
    assert "ModuleNotFoundError: import of tensorflow halted" in done.stderr  # of the last import


def bad(path: str, **arguments) -> str:
    with pytest.raises(UserError) as error:
        next(iterator(path, **arguments))
    said = str(error.value)
    assert len(said.splitlines()) <= 2
    return said


def test_what_cannot_be_read_is_said_plainly(path, tmp_path):
    rows = iterator(path)._rows.count
    assert f"has {rows} rows of 16 tokens (concat), fewer than one batch of {rows + 1}" in bad(
        path, batch_size=rows + 1
    )
    assert "fewer than one batch of 10000" in bad(
        path, batch_size=1, shard_index=0, shard_count=10_000
    )
    assert "no row of 400 tokens (long_documents)" in bad(
        path, construction="long_documents", length=400
    )
    assert "at least 2 tokens" in bad(path, length=1)
    assert "is 'stuffed': it must be one of concat, cut, packed" in bad(
        path, construction="stuffed"
    )
    assert "Cannot read shard 2 of 2" in bad(path, shard_index=2, shard_count=2)
    assert "The seed must be 0 or more, not -1" in bad(path, seed=-1)
    assert "manifest.json" in bad(str(tmp_path))
    with pytest.raises(UserError, match="no split 'test', only train, validation"):
        scoring_text(Blocks(path), length=16, num_sequences=1, split="test")
    with pytest.raises(NoText, match="no row of 400 tokens"):
        scoring_text(Blocks(path, construction="long_documents"), length=400, num_sequences=1)


def test_a_bucket_that_cannot_be_reached_is_said_plainly(monkeypatch):
    monkeypatch.setitem(objects.RETRIES, "max_retries", 1)
    with pytest.raises(RunFailed, match="http://127.0.0.1:9/manifest.json cannot be read"):
        iterator("http://127.0.0.1:9")


def test_a_position_of_other_blocks_is_refused(path, data_dir, tmp_path):
    other = str(tmp_path / "other")
    write_blocks(TextData(data_dir), other, splits=["train"])  # the same text in different parts
    state = iterator(path).get_state()
    for arguments, complaint in (
        ({"path": other}, "saved with blocks"),
        ({"construction": "cut"}, "saved with construction concat, but the run now has cut"),
        ({"length": 32}, "saved with length 16, but the run now has 32"),
        ({"seed": 4}, "saved with seed 3, but the run now has 4"),
    ):
        with pytest.raises(UserError, match=complaint):
            iterator(**{"path": path, **arguments}).set_state(state)
    for damaged in (b"", b"PK\x03\x04", state[:-9], b"[1]", b'{"samples": null}'):
        with pytest.raises(UserError, match="damaged, or does not belong to blocks"):
            iterator(path).set_state(damaged)
