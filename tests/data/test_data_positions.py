"""Saved positions in the text continue exactly, and are tied to what produced the tokens."""

import dataclasses
import itertools
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sample_text import BAD, GOOD, batches, data_dir, sentencepiece_model, taken

import fire_lm.data
from fire_lm.data import TextData, TrainIterator
from fire_lm.data.corpora import c4_writer
from fire_lm.data.on_the_fly import pipeline, tasks
from fire_lm.data.quiet_tensorflow import tf
from fire_lm.data.spec import CONSTRUCTIONS
from fire_lm.errors import UserError
from fire_lm.storage import objects, read_ends

__all__ = ["data_dir", "sentencepiece_model"]  # fixtures


def test_what_was_skipped_before_the_first_batch_survives_a_resume(data_dir):
    """The first block is read before the first batch; the ci tests save positions of every kind."""
    data = TextData(data_dir, shuffle_buffer=1000)
    first, resumed = (
        fire_lm.data.train_iterator(data, length=16, batch_size=5, seed=3) for _ in range(2)
    )
    resumed.set_state(first.get_state())
    next(resumed), next(first)
    assert resumed.skipped == first.skipped >= len(BAD)


def test_no_thread_tunes_a_pipeline(data_dir):
    """Whoever deletes an iterator waits for this thread, which sleeps for up to a minute."""
    data = TextData(data_dir)
    train = data.reader.groups(data, length=16, split="train", seed=3)
    for read in (train, tasks.documents(data, split="validation")):
        assert read.options().autotune.enabled is False


def test_the_position_of_a_tuned_pipeline_of_earlier_versions_continues(data_dir):
    data = TextData(data_dir, construction="packed", shuffle_buffer=30)
    first, resumed, untuned = (
        fire_lm.data.train_iterator(data, length=16, batch_size=5, seed=3) for _ in range(3)
    )
    first._reader = first._open_reader(as_tuned=True)
    taken(first, 20)
    with pytest.raises(tf.errors.NotFoundError):
        untuned._read_position(first._save_reader())
    resumed.set_state(first.get_state())
    for a, b in zip(taken(first, 20), taken(resumed, 20), strict=True):
        np.testing.assert_array_equal(a["targets"], b["targets"])
    again = fire_lm.data.train_iterator(data, length=16, batch_size=5, seed=3)
    again.set_state(resumed.get_state())
    for a, b in zip(taken(first, 20), taken(again, 20), strict=True):
        np.testing.assert_array_equal(a["targets"], b["targets"])


QUICK = [("concat", "drawn"), ("packed", "drawn")]  # "late" follows several epochs and blocks


@pytest.mark.parametrize(
    "construction, taken_after",
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.ci)
        for case in itertools.product(CONSTRUCTIONS, (0, "drawn", "late"))
    ],
)
def test_a_saved_position_continues_exactly(data_dir, construction, taken_after):
    data = TextData(data_dir, construction=construction, shuffle_buffer=30)
    arguments = dict(length=16, batch_size=5, seed=3)
    drawn = np.random.default_rng(CONSTRUCTIONS.index(construction)).integers([1, 40], [40, 80])
    taken_after = {0: 0, "drawn": drawn[0], "late": drawn[1]}[taken_after]
    uninterrupted = fire_lm.data.train_iterator(data, **arguments)
    for _ in range(taken_after):
        next(uninterrupted)
    state = uninterrupted.get_state()
    assert isinstance(state, bytes) and len(state) < 20_000
    expected = taken(uninterrupted, 40)
    resumed = fire_lm.data.train_iterator(data, **arguments)
    if 0 < taken_after < 40:  # a position can also be set on an iterator in use
        next(resumed)
    resumed.set_state(state)
    assert resumed.get_state() == state
    got = taken(resumed, 40)
    for a, b in zip(expected, got, strict=True):
        rows = {"targets", "weights"} | ({"segment_ids"} if data.packed else set())
        assert a.keys() == b.keys() == {*rows, "skipped"}
        for name in rows:
            np.testing.assert_array_equal(a[name], b[name])
        np.testing.assert_array_equal(a["weights"], a["targets"] != 0)
    # The counts agree for each batch: a resumed run reports each skipped document exactly once.
    assert [int(b["skipped"]) for b in got] == [int(b["skipped"]) for b in expected]
    assert sum(int(b["skipped"]) for b in expected) > 0


@pytest.mark.ci
@pytest.mark.parametrize("hosts", [2, 40])  # of 32 files: divided by file, by document
def test_the_position_of_a_shard_continues_exactly(data_dir, monkeypatch, hosts):
    from fire_lm.data.on_the_fly import preprocessors

    monkeypatch.setattr(preprocessors, "DOCUMENTS_PER_GROUP", 2)
    data = TextData(data_dir, shuffle_buffer=5)
    shard = dict(length=16, batch_size=2, seed=3, shard_index=1, shard_count=hosts)
    uninterrupted = fire_lm.data.train_iterator(data, **shard)
    for _ in range(int(np.random.default_rng(hosts).integers(1, 240 // hosts))):
        next(uninterrupted)
    state = uninterrupted.get_state()
    assert len(state) < 4_000
    resumed = fire_lm.data.train_iterator(data, **shard)
    resumed.set_state(state)
    for _ in range(240 // hosts):
        np.testing.assert_array_equal(next(resumed)["targets"], next(uninterrupted)["targets"])


@pytest.mark.ci
def test_the_state_does_not_grow_with_the_buffer(data_dir):
    iterator = fire_lm.data.train_iterator(
        TextData(data_dir, shuffle_buffer=1000), length=100, batch_size=1500, seed=0
    )
    next(iterator)
    assert len(iterator.get_state()) < 10_000  # the buffer has 400,000 bytes


def test_skipped_documents_are_counted_once_an_epoch(data_dir):
    data = TextData(data_dir, construction="cut", shuffle_buffer=1)
    epochs = 6
    run = batches(data, epochs * len(GOOD["train"]), length=400, batch_size=1)
    skipped = sum(int(batch["skipped"]) for batch in run)
    assert epochs * len(BAD) <= skipped <= (epochs + 1) * len(BAD)


@pytest.mark.ci
def test_a_restored_iterator_ends(data_dir):
    """With a parallel interleave, the destructor hung every few times (TensorFlow 2.21)."""
    code = f"""
import fire_lm.data as d
data = d.TextData({data_dir!r}, shuffle_buffer=30)
for seed in range(6):
    first = d.train_iterator(data, length=16, batch_size=5, seed=seed)
    [next(first) for _ in range(30)]
    second = d.train_iterator(data, length=16, batch_size=5, seed=seed)
    second.set_state(first.get_state())
    a, b = ([next(i)['targets'].tobytes() for _ in range(30)] for i in (first, second))
    assert a == b
    del first, second
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.ci
def test_a_position_of_other_data_is_refused(data_dir):
    data = TextData(data_dir, shuffle_buffer=30)
    arguments = dict(length=16, batch_size=5, seed=3)
    state = fire_lm.data.train_iterator(data, **arguments).get_state()
    others = [
        (data, dict(seed=4)),
        (data, dict(length=17)),
        (data, dict(shard_count=2)),
        (dataclasses.replace(data, construction="cut"), {}),
        (dataclasses.replace(data, shuffle_buffer=31), {}),
    ]
    for other, changed in others:
        iterator = fire_lm.data.train_iterator(other, **(arguments | changed))
        with pytest.raises(UserError, match="data position was saved with"):
            iterator.set_state(state)
    iterator = fire_lm.data.train_iterator(data, **arguments)
    of_blocks = b'{"samples": 12, "blocks": "0123"}'
    for damaged in (b"", b"nonsense", state[: len(state) // 2], of_blocks):
        with pytest.raises(UserError, match="damaged, or does not belong to data read"):
            iterator.set_state(damaged)


def test_a_flipped_bit_of_a_position_is_told(data_dir, monkeypatch):
    class Intact(Exception):
        """The bit has no effect."""

    def stop(*_):
        raise Intact

    monkeypatch.setattr(pipeline.SeqioIterator, "_restore_reader", stop)
    iterator = iterator_of(data_dir)
    state = iterator.get_state()
    for place in range(len(state)):
        flipped = bytearray(state)
        flipped[place] ^= 1
        with pytest.raises((UserError, Intact)):
            iterator.set_state(bytes(flipped))


def iterator_of(folder) -> TrainIterator:
    return fire_lm.data.train_iterator(
        TextData(str(folder), shuffle_buffer=30), length=16, batch_size=5, seed=3
    )


def test_a_position_is_tied_to_the_text_wherever_its_files_are(data_dir, tmp_path):
    """Other text is refused, even if the numbers of documents and bytes are the same."""
    state = iterator_of(data_dir).get_state()
    iterator_of(shutil.copytree(data_dir, tmp_path / "copied **[1]")).set_state(state)
    documents = {**GOOD["train"], **BAD}
    first, *_, last = sorted(GOOD["train"])
    for name in (first, last):
        text = documents[name]
        other = {**documents, name: text[:-1] + bytes([text[-1] ^ 1])}
        folder = tmp_path / f"{name} **[x]"  # TFDS would take the name as a pattern
        c4_writer.write(folder, {"train": other})
        with pytest.raises(UserError, match="the text of .* has changed since the checkpoint was"):
            iterator_of(folder).set_state(state)


def check_ends(path: str, whole: bytes) -> None:
    assert read_ends(path, 1000) == whole[:1000] + whole[-1000:]
    assert read_ends(path, len(whole)) == 2 * whole
    assert read_ends(path, len(whole) + 1) == whole, "a shorter file is read completely"
    assert read_ends(f"{path}_nowhere", 1000) is None


def test_only_the_ends_of_large_files_are_read(tmp_path):
    whole = bytes(range(250)) * 12
    (tmp_path / "large").write_bytes(whole)
    check_ends(str(tmp_path / "large"), whole)


@pytest.mark.ci
def test_the_ends_of_a_file_in_a_bucket_are_the_same(bucket):
    whole = bytes(range(250)) * 12
    objects.write(bucket.url("large"), whole)
    with bucket.counting() as counted:
        check_ends(bucket.url("large"), whole)
    assert counted.count() <= 9


@pytest.mark.ci
def test_a_position_is_tied_to_what_made_the_tokens(
    data_dir, sentencepiece_model, tmp_path, monkeypatch
):
    """It is tied to the content of the vocabulary, not its path, and to the preprocessing."""
    from sentencepiece import sentencepiece_model_pb2

    content = pathlib.Path(sentencepiece_model).read_bytes()
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    model.pieces[-1].score -= 1
    contents = {"here": content, "copied": content, "changed": model.SerializeToString()}

    def iterator(folder: str):
        path = tmp_path / folder / "same_name.model"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents[folder])
        data = TextData(data_dir, vocabulary=str(path), shuffle_buffer=30)
        return fire_lm.data.train_iterator(data, length=16, batch_size=5, seed=3)

    state = iterator("here").get_state()
    iterator("copied").set_state(state)
    with pytest.raises(UserError, match="vocabulary SHA-256 [0-9a-f]{64}, but the run now has"):
        iterator("changed").set_state(state)
    monkeypatch.setattr(pipeline, "PREPROCESSING", "another")
    with pytest.raises(UserError, match="with preprocessing skip .* but the run now has another"):
        iterator("here").set_state(state)
