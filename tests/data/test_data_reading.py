"""Reading: rows, shards, shuffling, skipped documents, vocabularies and byte counts."""

import collections
import os
import pathlib

import numpy as np
import pytest
from sample_blocks import expected_rows
from sample_text import (
    BAD,
    EOS,
    GOOD,
    batches,
    data_dir,
    documents_of,
    good_documents,
    sentencepiece_model,
)

import fire_lm.data
from fire_lm.data import TextData
from fire_lm.errors import UserError

__all__ = ["data_dir", "sentencepiece_model"]  # fixtures


def read_once(data: TextData, length: int, shard=None, byte_counts=False) -> dict[str, np.ndarray]:
    from fire_lm.data.on_the_fly import tasks

    groups = list(
        tasks.groups(
            data, length=length, split="train", seed=None, shard=shard, byte_counts=byte_counts
        ).as_numpy_iterator()
    )
    return {
        key: np.sum([group[key] for group in groups])
        if np.ndim(groups[0][key]) == 0
        else np.concatenate([group[key] for group in groups])
        for key in groups[0]
    }


@pytest.mark.parametrize("length", [2, 16, 400])
def test_no_token_is_lost(data_dir, length):
    """The rows are those that the documents make in the order in which the files hold them."""
    from fire_lm.data.on_the_fly import tasks

    groups = tasks.document_groups(TextData(data_dir), "train")
    texts = [text for group, _ in groups for text in group]
    assert sorted(texts) == sorted(GOOD["train"].values())
    documents = [[byte + 3 for byte in text] + [EOS] for text in texts]
    for construction in ("concat", "cut"):
        read = read_once(TextData(data_dir, construction=construction), length)
        assert read["targets"].dtype == np.int32
        expected = expected_rows(construction, documents, length)
        padded = [(*row, *[0] * (length - len(row))) for (row,) in expected]
        assert sorted(map(tuple, read["targets"].tolist())) == sorted(padded)
        assert read["skipped"] == len(BAD) and read["documents"] == len(documents)


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
    in_order: list[bytes] = []  # the same order of files, but with the rows not yet shuffled
    for group in tasks.groups(data, length=400, split="train", seed=3).take(9).as_numpy_iterator():
        in_order += [documents_of(row)[0] for row in group["targets"]]
    assert documents[:10] != in_order[:10]
    assert len(set(documents[:10]) & set(in_order[:16])) == 10


def test_blocks_of_equal_size_are_shuffled_differently(data_dir, monkeypatch):
    """Otherwise rows next to one another in one block would be so in all blocks."""
    from fire_lm.data.on_the_fly import preprocessors, tasks

    monkeypatch.setattr(preprocessors, "DOCUMENTS_PER_GROUP", 1)  # so that blocks end with a row
    data = TextData(data_dir, construction="cut", shuffle_buffer=20)
    groups = tasks.groups(data, length=400, split="train", seed=3).take(64).as_numpy_iterator()
    in_order = [documents_of(row)[0] for group in groups for row in group["targets"]]
    (rows,) = (batch["targets"] for batch in batches(data, 1, length=400, batch_size=60))
    places = np.reshape([in_order.index(documents_of(row)[0]) for row in rows], [3, 20])
    orders = places - 20 * np.arange(3)[:, None]
    for order in orders:
        assert sorted(order) == list(range(20))
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("files", [5, 2])  # 3 shards cannot share 2 files: split by document
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
    processor = vocabularies.load(sentencepiece_model).tokenizer  # SentencePiece's C++ tokenizer
    assert data.vocabulary_size() == processor.GetPieceSize()
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
    assert TextData(data_dir).vocabulary_size() == 259


def test_vocabulary_files_that_cannot_serve(data_dir, sentencepiece_model, tmp_path):
    from sentencepiece import sentencepiece_model_pb2

    def size(path) -> int:
        return TextData(data_dir, vocabulary=str(path)).vocabulary_size()

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
    """Models that encode unknown text as bytes may give their unused unknown piece the id 0."""
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
