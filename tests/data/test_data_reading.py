"""Reading: rows, positions, shards, skipped documents, byte counts and bad input."""

import collections
import dataclasses
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import fire_lm.data
from fire_lm.data.spec import CONSTRUCTIONS, NoText, TextData
from fire_lm.errors import RunFailed, UserError

EOS = 1
BAD = {"empty": b"", "blank": b" \n\t ", "broken": b"caf\xe9 \xff", "surrogate": b"\xed\xa0\x80 x"}


def good_documents(split: str, count: int) -> dict[str, bytes]:
    """Distinct documents of 3 to 60 characters, some of several bytes."""
    random = np.random.default_rng(len(split))
    letters = list("abc  xyz\n\té漢😀.")
    return {
        f"{split}/{i}": f"{i}:{''.join(random.choice(letters, random.integers(1, 55)))}!".encode()
        for i in range(count)
    }


GOOD = {"train": good_documents("train", 60), "validation": good_documents("validation", 24)}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    from fire_lm.data.corpora import c4_writer

    folder = tmp_path_factory.mktemp("text")
    c4_writer.write(folder, {split: texts | BAD for split, texts in GOOD.items()})
    return str(folder)


@pytest.fixture(scope="module")
def sentencepiece_model() -> str:
    import seqio

    folder = pathlib.Path(seqio.__file__).parent / "test_data" / "sentencepiece"
    return str(folder / "sentencepiece.model")


def read_once(data: TextData, length: int, shard=None, byte_counts=False) -> dict[str, np.ndarray]:
    from fire_lm.data.on_the_fly import tasks

    groups = list(
        tasks.dataset(
            data, length=length, split="train", seed=None, shard=shard, byte_counts=byte_counts
        ).as_numpy_iterator()
    )
    return {
        key: np.sum([group[key] for group in groups])
        if np.ndim(groups[0][key]) == 0
        else np.concatenate([group[key] for group in groups])
        for key in groups[0]
    }


def batches(data: TextData, count: int, **kwargs) -> list[dict[str, np.ndarray]]:
    arguments = dict(length=16, batch_size=5, seed=3) | kwargs
    return taken(fire_lm.data.train_iterator(data, **arguments), count)


def taken(iterator, count: int) -> list[dict[str, np.ndarray]]:
    """The next batches, each with the number of documents that were skipped before it."""
    return [{**next(iterator), "skipped": np.array(iterator.skipped)} for _ in range(count)]


def documents_of(tokens: np.ndarray) -> list[bytes]:
    """The byte vocabulary's documents in a stream of tokens, padding dropped."""
    tokens = tokens[tokens != 0]
    ends = np.flatnonzero(tokens == EOS)
    return [
        (part[part != EOS] - 3).astype(np.uint8).tobytes() for part in np.split(tokens, ends + 1)
    ]


def assert_conserved(rows: np.ndarray, documents: list[bytes], construction: str) -> None:
    """cut loses nothing, concat only the tail of the last document, shorter than a row."""
    assert collections.Counter(documents).total() == len(documents)
    *whole, last = documents_of(rows.ravel())
    missing = collections.Counter(documents) - collections.Counter(whole)
    assert not collections.Counter(whole) - collections.Counter(documents)
    if construction == "cut":
        assert last == b"" and not missing
        padding = rows == 0
        assert not np.any(padding[:, :-1] & ~padding[:, 1:]), "padding before a token"
        assert not padding[:, 0].any(), "an empty row"
    else:
        assert (rows != 0).all()
        lost = sum(len(document) + 1 for document in missing.elements()) - len(last)
        assert 0 <= lost < rows.shape[1]


def test_importing_the_package_is_light():
    check = "import fire_lm.data, sys; assert not {'tensorflow', 'seqio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("construction", ["concat", "cut"])
@pytest.mark.parametrize("length", [2, 16, 400])
def test_no_token_is_lost(data_dir, construction, length):
    read = read_once(TextData(data_dir, construction=construction), length)
    assert read["targets"].dtype == np.int32 and read["targets"].shape[1] == length
    assert_conserved(read["targets"], list(GOOD["train"].values()), construction)
    assert read["skipped"] == len(BAD) and read["documents"] == len(GOOD["train"])


@pytest.mark.parametrize("construction", ["concat", "cut"])
def test_the_conservation_check_can_fail(data_dir, construction):
    rows = read_once(TextData(data_dir, construction=construction), 16)["targets"]
    documents = list(GOOD["train"].values())
    changed = rows.copy()
    changed[3, 4] += 1
    for broken in (rows[1:], np.concatenate([rows, rows[:2]]), changed):
        with pytest.raises(AssertionError):
            assert_conserved(broken, documents, construction)


def test_invalid_utf8_is_found_as_python_finds_it():
    import tensorflow as tf

    from fire_lm.data.on_the_fly.preprocessors import is_text

    random = np.random.default_rng(0)
    alphabet = np.frombuffer(
        b"A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xff\x00\xef\xbb\xbf", "u1"
    )
    samples = [b"x" + random.choice(alphabet, random.integers(1, 9)).tobytes() for _ in range(4000)]
    samples += ["\ufffd".encode(), b"\xef\xbb\xbfx", b"\xf4\x90\x80\x80", b"\xc0\x80", b"a\x00"]

    def decodes(sample: bytes) -> bool:
        try:
            return bool(sample.decode())
        except UnicodeDecodeError:
            return False

    expected = [decodes(sample) for sample in samples]
    assert 20 < sum(expected) < len(samples) - 20
    assert is_text(tf.constant(samples)).numpy().tolist() == expected


def test_seed_decides_the_batches(data_dir):
    data = TextData(data_dir, shuffle_buffer=20)
    one, same, other = (batches(data, 30, seed=seed) for seed in (1, 1, 2))
    targets = [np.stack([batch["targets"] for batch in run]) for run in (one, same, other)]
    np.testing.assert_array_equal(targets[0], targets[1])
    assert [b["skipped"] for b in one] == [b["skipped"] for b in same]
    assert (targets[0] != targets[2]).any()
    assert targets[0].dtype == np.int32 and targets[0].shape == (30, 5, 16)


def test_batch_size_does_not_change_the_order_of_rows(data_dir):
    data = TextData(data_dir, shuffle_buffer=20)
    small = np.concatenate([b["targets"] for b in batches(data, 60, batch_size=3)])
    large = np.concatenate([b["targets"] for b in batches(data, 3, batch_size=60)])
    np.testing.assert_array_equal(small, large)


def test_rows_are_shuffled_but_none_is_lost_or_doubled(data_dir):
    from fire_lm.data.on_the_fly import tasks

    data = TextData(data_dir, construction="cut", shuffle_buffer=10)
    rows = np.concatenate([b["targets"] for b in batches(data, 60, length=400, batch_size=1)])
    documents = [documents_of(row)[0] for row in rows]
    assert collections.Counter(documents) == collections.Counter(GOOD["train"].values())
    in_order: list[bytes] = []  # the same order of files, before the rows are shuffled
    for group in tasks.dataset(data, length=400, split="train", seed=3).take(9).as_numpy_iterator():
        in_order += [documents_of(row)[0] for row in group["targets"]]
    assert documents[:10] != in_order[:10]
    assert len(set(documents[:10]) & set(in_order[:16])) == 10


def test_blocks_of_equal_size_are_shuffled_differently(data_dir, monkeypatch):
    """Else rows that stand next to each other in one block would do so in all."""
    from fire_lm.data.on_the_fly import preprocessors, tasks

    monkeypatch.setattr(preprocessors, "DOCUMENTS_PER_GROUP", 1)  # so that blocks end on the row
    data = TextData(data_dir, construction="cut", shuffle_buffer=20)
    groups = tasks.dataset(data, length=400, split="train", seed=3).take(64).as_numpy_iterator()
    in_order = [documents_of(row)[0] for group in groups for row in group["targets"]]
    (rows,) = (batch["targets"] for batch in batches(data, 1, length=400, batch_size=60))
    places = np.reshape([in_order.index(documents_of(row)[0]) for row in rows], [3, 20])
    orders = places - 20 * np.arange(3)[:, None]
    for order in orders:
        assert sorted(order) == list(range(20))
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("files", [5, 2])  # 2 files for 3 shards: split by document instead
def test_shards_are_disjoint_and_their_union_is_the_text(tmp_path, monkeypatch, files):
    from fire_lm.data.corpora import c4_writer
    from fire_lm.data.on_the_fly import preprocessors

    monkeypatch.setattr(c4_writer, "_MAX_FILES_PER_SPLIT", files)
    monkeypatch.setattr(preprocessors, "DOCUMENTS_PER_GROUP", 1)
    documents = good_documents("many", 40)  # 8 in each of 5 files
    c4_writer.write(tmp_path, {"train": documents})
    data = TextData(str(tmp_path), construction="cut", shuffle_buffer=1)
    seen = []
    for shard, size in enumerate([16, 16, 8] if files == 5 else [14, 13, 13]):
        one_epoch = batches(data, size, length=400, batch_size=1, shard_index=shard, shard_count=3)
        seen += [documents_of(row)[0] for batch in one_epoch for row in batch["targets"]]
    assert sorted(seen) == sorted(documents.values())


def test_what_was_skipped_before_the_first_batch_survives_a_resume(data_dir):
    """The first block is read before it; the ci tests take positions of every kind."""
    data = TextData(data_dir, shuffle_buffer=1000)
    first, resumed = (
        fire_lm.data.train_iterator(data, length=16, batch_size=5, seed=3) for _ in range(2)
    )
    resumed.set_state(first.get_state())
    next(resumed), next(first)
    assert resumed.skipped == first.skipped >= len(BAD)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize(  # some epochs and blocks before the last ones
    "taken_after",
    [pytest.param(0, marks=pytest.mark.ci), "drawn", pytest.param("late", marks=pytest.mark.ci)],
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
    if 0 < taken_after < 40:  # a position may also be set on an iterator in use
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
    # To the document: a resumed run reports each skipped document exactly once.
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
    assert len(iterator.get_state()) < 10_000  # the buffer holds 400,000 bytes


def test_skipped_documents_are_counted_once_an_epoch(data_dir):
    data = TextData(data_dir, construction="cut", shuffle_buffer=1)
    epochs = 6
    run = batches(data, epochs * len(GOOD["train"]), length=400, batch_size=1)
    skipped = sum(int(batch["skipped"]) for batch in run)
    assert epochs * len(BAD) <= skipped <= (epochs + 1) * len(BAD)


@pytest.mark.ci
def test_a_restored_iterator_ends(data_dir):
    """A parallel interleave hung in its destructor every few times (TensorFlow 2.21)."""
    code = f"""
import fire_lm.data as d
data = d.TextData({data_dir!r}, shuffle_buffer=30)
for seed in range(15):
    first = d.train_iterator(data, length=16, batch_size=5, seed=seed)
    [next(first) for _ in range(30)]
    second = d.train_iterator(data, length=16, batch_size=5, seed=seed)
    second.set_state(first.get_state())
    a, b = ([next(i)['targets'].tobytes() for _ in range(30)] for i in (first, second))
    assert a == b
    del first, second
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


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
        with pytest.raises(UserError, match="damaged, or one of blocks"):
            iterator.set_state(damaged)


def test_a_position_is_tied_to_what_made_the_tokens(
    data_dir, sentencepiece_model, tmp_path, monkeypatch
):
    """To the vocabulary's content, wherever it lies, and to the preprocessing."""
    from sentencepiece import sentencepiece_model_pb2

    from fire_lm.data.on_the_fly import pipeline

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
    with pytest.raises(UserError, match="saved with vocabulary SHA-256 [0-9a-f]{64}, now it is"):
        iterator("changed").set_state(state)
    monkeypatch.setattr(pipeline, "PREPROCESSING", "another")
    with pytest.raises(UserError, match="saved with preprocessing skip .* now it is another"):
        iterator("here").set_state(state)


def test_scoring_text_is_fixed_and_counts_bytes(data_dir):
    data = TextData(data_dir)
    text = fire_lm.data.scoring_text(data, length=32, num_sequences=5)
    again = fire_lm.data.scoring_text(data, length=32, num_sequences=5)
    np.testing.assert_array_equal(text.targets, again.targets)
    assert text.targets.shape == text.byte_counts.shape == (5, 32)
    assert text.targets.dtype == text.byte_counts.dtype == np.int32
    np.testing.assert_array_equal(text.byte_counts, text.targets >= 3)
    everything = fire_lm.data.scoring_text(data, length=32, num_sequences=10_000)
    total = sum(len(document) + 1 for document in GOOD["validation"].values())
    assert len(everything.targets) == total // 32
    assert everything.skipped == len(BAD)
    known = {row.tobytes() for row in everything.targets}
    assert all(row.tobytes() in known for row in text.targets)


def test_sentencepiece_ids_and_byte_counts(data_dir, sentencepiece_model):
    from fire_lm.data import vocabularies

    data = TextData(data_dir, vocabulary=sentencepiece_model, construction="cut")
    processor = vocabularies.load(sentencepiece_model).tokenizer  # SentencePiece's own, in C++
    assert fire_lm.data.vocabulary_size(data) == processor.GetPieceSize()
    read = read_once(data, 400, byte_counts=True)
    plain = read_once(data, 400)
    np.testing.assert_array_equal(read["targets"], plain["targets"])
    got = sorted(
        (row[row != 0].tolist(), int(counts.sum()))
        for row, counts in zip(read["targets"], read["byte_counts"], strict=True)
    )
    expected = sorted(
        (processor.EncodeAsIds(text.decode()) + [processor.eos_id()], len(text))
        for text in GOOD["train"].values()
    )
    assert got == expected
    assert (read["byte_counts"] >= 0).all()
    assert (read["byte_counts"][read["targets"] <= EOS] == 0).all()
    assert any(processor.unk_id() in ids for ids, _ in got), "no unknown piece was tried"


def test_byte_vocabulary_size(data_dir):
    assert fire_lm.data.vocabulary_size(TextData(data_dir)) == 259


def test_vocabulary_files_that_cannot_serve(data_dir, sentencepiece_model, tmp_path):
    from sentencepiece import sentencepiece_model_pb2

    def size(path) -> int:
        return fire_lm.data.vocabulary_size(TextData(data_dir, vocabulary=str(path)))

    with pytest.raises(UserError, match="not found"):
        size(tmp_path / "absent.model")
    with pytest.raises(UserError, match="not found"):
        size(tmp_path)
    for name, content in (("noise", os.urandom(1000)), ("empty", b""), ("text", b"hello\n" * 9)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="Not a SentencePiece model"):
            size(tmp_path / name)
    model = sentencepiece_model_pb2.ModelProto.FromString(
        pathlib.Path(sentencepiece_model).read_bytes()
    )
    normal, unknown, control = 1, 2, 3
    for name in ("unknown is 0", "no end"):
        changed = sentencepiece_model_pb2.ModelProto()
        changed.CopyFrom(model)
        first, second, third = changed.pieces[:3]
        if name == "unknown is 0":
            first.piece, first.type = "<unk>", unknown
            third.piece, third.type = "<pad>", control
            changed.trainer_spec.unk_id, changed.trainer_spec.pad_id = 0, 2
        else:
            second.piece, second.type = "<was the end>", normal
            changed.trainer_spec.eos_id = -1
        (tmp_path / name).write_bytes(changed.SerializeToString())
        with pytest.raises(UserError, match="--pad_id=0 --eos_id=1 --unk_id=2"):
            size(tmp_path / name)


def test_padding_is_never_unknown_text(sentencepiece_model, tmp_path):
    """Models whose bytes stand for what they do not know may give the unknown piece id 0."""
    from sentencepiece import sentencepiece_model_pb2

    from fire_lm.data import vocabularies

    assert vocabularies.unknown_id(sentencepiece_model) == 2
    model = sentencepiece_model_pb2.ModelProto.FromString(
        pathlib.Path(sentencepiece_model).read_bytes()
    )
    unknown, control, byte = 2, 3, 6
    model.pieces[0].piece, model.pieces[0].type = "<unk>", unknown
    model.pieces[2].piece, model.pieces[2].type = "<pad>", control
    model.trainer_spec.unk_id, model.trainer_spec.pad_id = 0, 2
    model.trainer_spec.byte_fallback = True
    for value in range(256):
        model.pieces.add(piece=f"<0x{value:02X}>", type=byte)
    (tmp_path / "bytes.model").write_bytes(model.SerializeToString())
    assert vocabularies.unknown_id(str(tmp_path / "bytes.model")) is None


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"data_dir": "/nonexistent/dir"}, {}, r"/nonexistent/dir(.|\n)*fire-lm corpus"),
        ({"tfds_name": "c4/en:9.9.9"}, {}, r"No data set c4/en:9.9.9"),
        ({"tfds_name": "no_such_set"}, {}, r"No data set no_such_set"),
        ({"vocabulary": "/nonexistent.model"}, {}, "not found"),
        ({"construction": "paste"}, {}, "concat, cut, packed, long_documents"),
        ({"shuffle_buffer": 0}, {}, "at least 1"),
        ({}, {"length": 1}, "at least 2 tokens"),
        ({}, {"batch_size": 0}, "batches of 0"),
        ({}, {"shard_index": 2, "shard_count": 2}, "shard 2 of 2"),
        ({}, {"seed": -1}, "The seed is 0 or more, not -1"),
    ],
)
def test_bad_input_is_told_in_plain_words(data_dir, change, arguments, message):
    arguments = dict(length=16, batch_size=5, seed=3) | arguments
    with pytest.raises(UserError, match=message) as told:
        data = dataclasses.replace(TextData(data_dir), **change)
        fire_lm.data.train_iterator(data, **arguments)
    assert str(told.value).count("\n") <= 2


def test_bad_scoring_requests(data_dir):
    data = TextData(data_dir)
    with pytest.raises(UserError, match="no split 'test', only train, validation"):
        fire_lm.data.scoring_text(data, length=16, num_sequences=1, split="test")
    with pytest.raises(NoText, match="less text than one row"):
        fire_lm.data.scoring_text(data, length=10**6, num_sequences=1)
    with pytest.raises(UserError, match="At least one sequence"):
        fire_lm.data.scoring_text(data, length=16, num_sequences=0)


def test_text_that_cannot_be_trained_on(tmp_path):
    from fire_lm.data.corpora import c4_writer

    c4_writer.write(tmp_path, {"train": BAD})
    iterator = fire_lm.data.train_iterator(TextData(str(tmp_path)), length=4, batch_size=1, seed=0)
    with pytest.raises(UserError, match="every document is empty, huge or not UTF-8"):
        next(iterator)
    iterator = fire_lm.data.train_iterator(
        TextData(str(tmp_path)), length=4, batch_size=1, seed=0, shard_index=8, shard_count=9
    )
    with pytest.raises(UserError, match="shard 8 of 9"):
        next(iterator)


@pytest.mark.ci
@pytest.mark.parametrize("damage", ["cut short", "a bit flipped", "no longer there"])
def test_a_damaged_file_is_a_failure_while_running(tmp_path, damage):
    """In training, scoring and `corpus check`; a flipped bit is seen by TFRecord's checksums."""
    from fire_lm.data.corpora import c4_writer
    from fire_lm.data.on_the_fly import survey

    c4_writer.write(tmp_path, {"train": GOOD["train"]})
    for file in tmp_path.glob("c4/en/3.1.0/*tfrecord*"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= damage == "a bit flipped"
        file.write_bytes(content[: -7 if damage == "cut short" else None])
        if damage == "no longer there":
            file.unlink()
    data = TextData(str(tmp_path))
    with pytest.raises(RunFailed, match="Reading c4/en:3.1.0") as told:
        iterator = fire_lm.data.train_iterator(data, length=16, batch_size=9, seed=0)
        [next(iterator) for _ in range(200)]
    assert str(told.value).count("\n") == 0
    assert not any(noise in str(told.value) for noise in ("{", "node", "[Op", "name:"))
    with pytest.raises(RunFailed, match="Reading c4/en:3.1.0"):
        _mixed(data, length=16, batch_size=9, seed=0)
    with pytest.raises(RunFailed, match="Reading c4/en:3.1.0"):
        fire_lm.data.scoring_text(data, length=16, num_sequences=10**6, split="train")
    with pytest.raises(RunFailed, match="Reading c4/en:3.1.0"):
        survey.survey(data, "train", 10**6)


def _mixed(data: TextData, **arguments):
    mixture = dataclasses.replace(data, mixture=((data.tfds_name, 1.0),))
    iterator = fire_lm.data.train_iterator(mixture, **arguments)
    return [next(iterator) for _ in range(200)]


@pytest.mark.ci
@pytest.mark.parametrize("damage", ["emptied", "cut between records"])
@pytest.mark.parametrize(  # 40 hosts share 32 files: divided by document
    "hosts, failing", [(1, [0]), (2, [1]), (40, [0, 1])]
)
def test_a_file_that_lost_whole_documents_is_a_failure(tmp_path, damage, hosts, failing):
    """TFRecord's checksums do not see it; without a failure the text would be lost silently."""
    from fire_lm.data.corpora import c4_writer

    c4_writer.write(tmp_path, {"train": GOOD["train"]})
    file = sorted(tmp_path.glob("c4/en/3.1.0/*tfrecord*"))[5]
    content = file.read_bytes()
    first_record = 8 + 4 + int.from_bytes(content[:8], "little") + 4
    assert first_record < len(content), "this file holds several documents"
    file.write_bytes(content[: 0 if damage == "emptied" else first_record])
    failed = []
    for host in range(min(hosts, 2)):
        try:
            batches(TextData(str(tmp_path)), 99, batch_size=9, shard_index=host, shard_count=hosts)
        except RunFailed as error:
            assert "Reading c4/en:3.1.0" in str(error) and "contained only" in str(error)
            failed.append(host)
    assert failed == failing


def test_hosts_with_nothing_to_read_say_so_after_two_rounds_of_their_own(tmp_path):
    from fire_lm.data.corpora import c4_writer

    c4_writer.write(tmp_path, {"train": {str(n): b" " for n in range(512)}})
    iterator = fire_lm.data.train_iterator(
        TextData(str(tmp_path)), length=4, batch_size=1, seed=0, shard_index=1, shard_count=8
    )
    skipped = []
    iterator._reader = map(
        lambda group: skipped.append(int(group["skipped"])) or group, iterator._reader
    )
    with pytest.raises(UserError, match="No readable text"):
        next(iterator)
    assert 2 * 64 < sum(skipped) < 3 * 64


def _store(folder: pathlib.Path, features, examples, **settings) -> TextData:
    """As somebody else's data set, in an order of its own."""
    from fire_lm.data.quiet_tensorflow import tfds, without_their_warnings

    with without_their_warnings():
        tfds.dataset_builders.store_as_tfds_dataset(
            name="other", version="1.0.0", data_dir=str(folder), disable_shuffling=True,
            features=tfds.features.FeaturesDict(features),
            split_datasets={"train": list(enumerate(examples))}, **settings,
        )  # fmt: skip
    return TextData(str(folder), tfds_name="other:1.0.0")


def test_data_sets_of_other_schemas(tmp_path):
    from fire_lm.data.quiet_tensorflow import tfds

    text = tfds.features.Text()
    for number, (features, example, complaint) in enumerate(
        [
            ({"body": text}, {"body": "text"}, "has no feature 'text', only body"),
            ({"text": np.int64}, {"text": 3}, "is no single string"),
            ({"text": {"en": text}}, {"text": {"en": "text"}}, "is no single string"),
            ({"text": tfds.features.Sequence(text)}, {"text": ["a"]}, "is no single string"),
            ({"text": tfds.features.Dataset(text)}, {"text": ["a"]}, "is no single string"),
        ]
    ):
        data = _store(tmp_path / str(number), features, [example])
        with pytest.raises(UserError, match=complaint) as told:
            fire_lm.data.train_iterator(data, length=16, batch_size=1, seed=0)
        assert str(told.value).count("\n") <= 1


def test_a_data_set_in_files_that_are_no_stream(tmp_path, monkeypatch):
    from fire_lm.data.on_the_fly import tasks
    from fire_lm.data.quiet_tensorflow import tfds

    data = _store(tmp_path, {"text": tfds.features.Text()}, [{"text": "words"}])
    info = tmp_path / "other" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"tfrecord"', '"array_record"'))
    with pytest.raises(UserError, match="(?s)array_record files.*tfds convert_format"):
        tasks.check(data, length=16, split="train")


def test_an_ordered_data_set_is_read_as_any_other(tmp_path, monkeypatch, caplog):
    from fire_lm.data.on_the_fly import preprocessors
    from fire_lm.data.quiet_tensorflow import tfds

    monkeypatch.setattr(preprocessors, "DOCUMENTS_PER_GROUP", 1)
    texts = list(GOOD["validation"].values())
    data = _store(tmp_path, {"text": tfds.features.Text()}, [{"text": text} for text in texts])
    data = dataclasses.replace(data, construction="cut", shuffle_buffer=1)
    caplog.clear()
    seen = []
    for shard in range(3):
        own = batches(data, 8, length=400, batch_size=1, shard_index=shard, shard_count=3)
        seen += [documents_of(row)[0] for batch in own for row in batch["targets"]]
    in_order = fire_lm.data.scoring_text(data, length=400, num_sequences=24, split="train")
    assert sorted(seen) == sorted(texts)
    assert [documents_of(row)[0] for row in in_order.targets] == texts
    assert not caplog.records


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_damaged_metadata_is_told(tmp_path, name):
    from fire_lm.data.corpora import c4_writer
    from fire_lm.data.on_the_fly import tasks

    c4_writer.write(tmp_path, {"train": GOOD["train"]})
    file = tmp_path / "c4" / "en" / "3.1.0" / name
    whole = file.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"[]", b"\xff\xfe\x00"):
        file.write_bytes(content)
        with pytest.raises(RunFailed, match="metadata of c4/en:3.1.0 .* damaged") as told:
            tasks.check(TextData(str(tmp_path)), length=16, split="train")
        assert "No data set" not in str(told.value) and str(told.value).count("\n") <= 1


def test_a_bucket_is_not_offered_as_a_place_to_write(monkeypatch):
    """`fire-lm corpus` writes to local directories alone."""
    from fire_lm.data.on_the_fly import tasks

    monkeypatch.setattr(tasks, "data_sets", lambda _: [])

    def missing(data_dir: str) -> str:
        monkeypatch.setattr(tasks.tfds, "builder", _not_found)
        with pytest.raises(UserError, match="No data set c4/en:3.1.0") as told:
            tasks.dataset_info(TextData(data_dir))
        return str(told.value)

    assert "fire-lm corpus" not in missing("gs://bucket/text")
    assert "`fire-lm corpus --data_dir=here` writes" in missing("here")


def _not_found(*_, **__):
    from fire_lm.data.quiet_tensorflow import tfds

    raise tfds.core.registered.DatasetNotFoundError


def test_no_document_of_the_asked_length(data_dir):
    data = TextData(data_dir, construction="long_documents")
    with pytest.raises(NoText, match="No document of the split 'validation' .* has the 1,000") as e:
        fire_lm.data.scoring_text(data, length=1000, num_sequences=1)
    assert "long_documents" in str(e.value) and str(e.value).count("\n") == 1
    iterator = fire_lm.data.train_iterator(data, length=1000, batch_size=1, seed=0)
    with pytest.raises(UserError, match="No document of the split 'train' .* has the 1,000 tokens"):
        next(iterator)


def test_storage_that_refuses_is_told(data_dir, monkeypatch):
    """As a bucket without permission does; the errors are TensorFlow's."""
    from fire_lm.data.on_the_fly import tasks
    from fire_lm.data.quiet_tensorflow import tf, tfds

    def refuse(*_, **__):
        raise tf.errors.PermissionDeniedError(None, None, "403 on gs://bucket: no storage.get")

    monkeypatch.setattr(tfds, "builder", refuse)
    with pytest.raises(RunFailed, match=r"c4/en:3.1.0 .*(\n.*)+403 on gs://bucket") as told:
        tasks.check(TextData(data_dir), length=16, split="train")
    assert str(told.value).count("\n") <= 2
    monkeypatch.setattr(tf.io.gfile, "exists", refuse)
    with pytest.raises(UserError, match="Cannot look up the vocabulary gs://b/v.model: 403"):
        fire_lm.data.vocabulary_size(TextData(data_dir, vocabulary="gs://b/v.model"))
