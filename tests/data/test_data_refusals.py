"""Data sets, files and requests that cannot be read are reported in one or two lines."""

import dataclasses
import pathlib

import numpy as np
import pytest
from sample_text import BAD, GOOD, batches, data_dir, documents_of

import fire_lm.data
from fire_lm.cli import main
from fire_lm.data import TextData
from fire_lm.data.batches import NoText
from fire_lm.errors import RunFailed, UserError

__all__ = ["data_dir"]  # fixtures


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"data_dir": "/nonexistent/dir"}, {}, r"/nonexistent/dir(.|\n)*fire-lm corpus"),
        ({"tfds_name": "c4/en:9.9.9"}, {}, r"No data set c4/en:9.9.9"),
        ({"tfds_name": "no_such_set"}, {}, r"No data set no_such_set"),
        ({"tfds_name": "c4/en"}, {}, r"contains c4/en:3.1.0: set(.|\n)*the name has no version"),
        (
            {"data_dir": "/nonexistent/dir", "tfds_name": "toy:1.0.0"},
            {},
            r"--data_dir=/nonexistent/dir --name=toy --from=FILES` writes it",
        ),
        ({"vocabulary": "/nonexistent.model"}, {}, "not found"),
        ({"construction": "paste"}, {}, "concat, cut, packed, long_documents"),
        ({"shuffle_buffer": 0}, {}, "at least 1"),
        ({}, {"length": 1}, "at least 2 tokens"),
        ({}, {"batch_size": 0}, "batches of 0"),
        ({}, {"shard_index": 2, "shard_count": 2}, "shard 2 of 2"),
        ({}, {"seed": -1}, "The seed must be 0 or more, not -1"),
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
    with pytest.raises(UserError, match="number of sequences to score must be positive"):
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
    """Training, scoring and `corpus check` fail; TFRecord's checksums detect a flipped bit."""
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
    """TFRecord's checksums do not detect this, so that text would be lost silently."""
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
    """Store a data set as another author would, with an order of its own."""
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
            ({"text": np.int64}, {"text": 3}, "is not a single string"),
            ({"text": {"en": text}}, {"text": {"en": "text"}}, "is not a single string"),
            ({"text": tfds.features.Sequence(text)}, {"text": ["a"]}, "is not a single string"),
            ({"text": tfds.features.Dataset(text)}, {"text": ["a"]}, "is not a single string"),
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


def test_a_bucket_is_not_offered_for_the_embedded_text(monkeypatch):
    """`fire-lm corpus` writes this text to local directories only."""
    from fire_lm.data.on_the_fly import metadata

    monkeypatch.setattr(metadata, "data_sets", lambda _: [])

    def missing(data_dir: str, name: str = "c4/en:3.1.0") -> str:
        monkeypatch.setattr(metadata.tfds, "builder", _not_found)
        with pytest.raises(UserError, match=f"No data set {name}") as told:
            metadata.dataset_info(TextData(data_dir, name))
        return str(told.value)

    assert "fire-lm corpus" not in missing("gs://bucket/text")
    remedy = "`fire-lm corpus --data_dir=gs://bucket/text --name=mine --from=FILES` writes it"
    assert remedy in missing("gs://bucket/text", "mine:1.0.0")
    assert "`fire-lm corpus --data_dir=here` writes" in missing("here")


def _not_found(*_, **__):
    from fire_lm.data.quiet_tensorflow import tfds

    raise tfds.core.registered.DatasetNotFoundError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("corpus --from={0}/a --name=mine --data_dir=foo://b", "foo://b is neither a local path"),
        ("corpus --from=foo://b --name=mine --data_dir={0}", "foo://b is neither a local path"),
        ("corpus check --data_dir=foo://b", "foo://b is neither a local path nor a gs:// path"),
        ("corpus vocab --data_dir={0} --output=foo://b/v", "foo://b/v is neither a local path"),
        ("corpus tasks --suite=scrolls --data_dir={0} --source=foo://b", "foo://b is neither a"),
        ("corpus tasks --suite=long_eval --data_dir=foo://b --rows=1", "foo://b is neither a"),
        ("corpus blocks --data_dir={1} --output=foo://b", "foo://b is neither a local path"),
    ],
)
def test_a_scheme_that_is_not_supported_is_told(arguments, words, data_dir, tmp_path, capsys):
    assert main(arguments.format(tmp_path, data_dir).split()) == 2
    told = capsys.readouterr().err
    assert words in told and told.strip().count("\n") <= 1


def test_no_document_of_the_asked_length(data_dir):
    data = TextData(data_dir, construction="long_documents")
    with pytest.raises(
        NoText, match="No document in the split 'validation' .* has at least 1,000"
    ) as e:
        fire_lm.data.scoring_text(data, length=1000, num_sequences=1)
    assert "long_documents" in str(e.value) and str(e.value).count("\n") == 1
    iterator = fire_lm.data.train_iterator(data, length=1000, batch_size=1, seed=0)
    with pytest.raises(UserError, match="No document in the split 'train' .* has at least 1,000"):
        next(iterator)


def test_storage_that_refuses_is_told(data_dir, monkeypatch):
    """TensorFlow raises these errors for a bucket without permission."""
    from fire_lm.data.on_the_fly import tasks
    from fire_lm.data.quiet_tensorflow import tf, tfds

    def refuse(*_, **__):
        raise tf.errors.PermissionDeniedError(None, None, "403 on gs://bucket: no storage.get")

    monkeypatch.setattr(tfds, "builder", refuse)
    with pytest.raises(RunFailed, match=r"c4/en:3.1.0 .*(\n.*)+403 on gs://bucket") as told:
        tasks.check(TextData(data_dir), length=16, split="train")
    assert str(told.value).count("\n") <= 2
    monkeypatch.setattr(tf.io.gfile, "exists", refuse)
    with pytest.raises(UserError, match="Cannot access the vocabulary gs://b/v.model: 403"):
        TextData(data_dir, vocabulary="gs://b/v.model").vocabulary_size()
